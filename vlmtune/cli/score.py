"""`vlmtune score`: shows how well captions fit images. It writes nothing."""

import argparse

from rich.table import Table

from vlmtune.cli.plugins import find_model
from vlmtune.report.screen import console, frame


def run(options: argparse.Namespace) -> None:
    """Shows the score of each image in `options.images` with each caption of `options.text`."""
    scores = find_model(options.model, options.pretrained).score(options.images, options.text)
    table = Table("image", box=frame())
    for text in options.text:
        table.add_column(text, justify="right")
    for image, row in zip(options.images, scores.tolist(), strict=True):
        table.add_row(str(image), *[f"{score:.4f}" for score in row])
    console().print(table)
