"""`vlmtune score`: shows how well captions fit images.

In: a model, images and captions. Out: a table on stdout. Never: a file.
"""

import argparse
import sys
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from vlmtune.cli.plugins import model_of
from vlmtune.report.screen import console, frame

SHOWN = 80  # characters of a caption in a warning


def run(options: argparse.Namespace) -> None:
    """Shows the score of each image in `options.images` with each caption of `options.text`.

    Of several captions the best of each image is marked; ties are all marked.
    """
    model = model_of(options)
    scores = model.score(options.images, options.text)
    warn_truncated(model.backbone.too_long(options.text))
    several = len(options.text) > 1
    table = Table("image", box=frame())
    for text in options.text:
        table.add_column(escape(text), justify="right")
    for image, row in zip(options.images, scores.tolist(), strict=True):
        cells = []
        for score in row:
            # Equal scores are all marked: none of them is the better one.
            star = "* " if several and score == max(row) else ""
            cells.append(f"{star}{score:.4f}")
        table.add_row(escape(image), *cells)
    console().print(table)
    note = "higher is better"
    if several:
        note += "; * is the best caption of an image"
    console().print(f"{note}; scores are not probabilities", markup=False)


def warn_truncated(captions: Sequence[str]) -> None:
    """Warns of captions that are longer than the model reads."""
    for caption in captions:
        print(
            f"vlmtune: warning: longer than the model reads, and truncated: {caption[:SHOWN]!r}",
            file=sys.stderr,
        )
