"""`vlmtune search`: shows which images of an index fit captions best, or are most like images.

In: the folder of an index, and queries. Out: tables on stdout, and a page with the pictures if one
is asked for. Never: a change of the index.
"""

import argparse
from itertools import chain
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vlmtune.cli.plugins import model_of
from vlmtune.cli.score import warn_truncated
from vlmtune.data.images import open_image
from vlmtune.errors import UserError, counted
from vlmtune.model.resolving import device_of_this_machine
from vlmtune.report.screen import console, frame
from vlmtune.report.search_page import search_page
from vlmtune.search.index import Index
from vlmtune.storage.files import check_outputs, write_text

SIMILAR = 8
"""Images of the index that the page shows beside each found image."""


def run(options: argparse.Namespace) -> None:
    """Shows the best images of `options.index` for each caption and each image of `options.like`.

    Files below the working directory are shown by their relative paths.
    """
    if not options.queries and not options.like:
        raise UserError("expected captions, or images after --like, got none: give one")
    pictures = [open_image(path) for path in options.like]
    model = None if options.model is None else model_of(options)
    device = device_of_this_machine(options.device)
    index = Index.open(
        options.index, model, device, options.packages, options.batch_size, options.pretrained
    )
    files_of_index = options.index.rglob("*")
    check_outputs([options.html], chain(options.like, map(Path, index.names), files_of_index))
    by_caption = index.search_all(options.queries, options.top, options.recall)
    warn_truncated(index.too_long(options.queries))
    results = list(zip(options.queries, by_caption, strict=True))
    for path, picture in zip(options.like, pictures, strict=True):
        results.append((f"like {path.name}", index.similar(picture, options.top)))
    here = Path.cwd()
    for query, hits in results:
        table = Table("image", box=frame())
        table.add_column(escape(query), justify="right")
        for path, score in hits:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            table.add_row(escape(str(shown)), f"{score:.4f}")
        console().print(table)
    note = f"of {counted(len(index), 'image')}; higher is better; scores are not probabilities"
    console().print(note, markup=False)
    if options.html is not None:
        similar = {}
        for _, hits in results:
            for path, _ in hits:
                if path not in similar:
                    position = index.names.find(str(path))
                    assert position is not None, "a file of the index"
                    neighbours = index.similar(position, SIMILAR)
                    similar[path] = [neighbour.path for neighbour in neighbours]
        write_text(options.html, search_page(results, similar, note))
        print(f"page: {options.html}")
