"""`vlmtune search`: shows which images of an index fit captions best. It writes nothing."""

import argparse
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vlmtune.cli.plugins import find_device, find_model
from vlmtune.report.screen import console, frame
from vlmtune.search.index import Index


def run(options: argparse.Namespace) -> None:
    """Shows the best images of `options.index` for each caption of `options.queries`.

    Files below the working directory are shown by their relative paths.
    """
    device = find_device(options.device)
    model = None if options.model is None else find_model(options.model, options.pretrained)
    index = Index.open(options.index, None if model is None else model.to(device), device)
    here = Path.cwd()
    for query in options.queries:
        table = Table("image", box=frame())
        table.add_column(escape(query), justify="right")
        for path, score in index.search(query, options.top, options.recall):
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            table.add_row(escape(str(shown)), f"{score:.4f}")
        console().print(table)
    console().print(
        f"of {len(index)} images; higher is better; scores are no probabilities", markup=False
    )
