"""`vlmtune search`: shows which images of an index fit captions best, as a table or a page.

In: the folder of an index. Out: tables on stdout, or a page on this machine. Never: a file.
"""

import argparse
import contextlib
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vlmtune.cli.plugins import find_device, find_model
from vlmtune.errors import UserError
from vlmtune.report.screen import console, frame
from vlmtune.search.index import Index
from vlmtune.search.page import PageServer


def run(options: argparse.Namespace) -> None:
    """Shows the best images of `options.index` for each caption of `options.queries`.

    Files below the working directory are shown by their relative paths.
    """
    if bool(options.queries) == options.page:
        raise UserError("expected captions, or --page without any: give one of them")
    device = find_device(options.device)
    source = (options.model, options.pretrained, options.architecture)
    model = None if options.model is None else find_model(*source, options.packages)
    model = None if model is None else model.to(device)
    index = Index.open(options.index, model, device, options.packages)
    if options.page:
        _serve(PageServer(index, options.port, options.top, options.recall))
        return
    here = Path.cwd()
    results = index.search_all(options.queries, options.top, options.recall)
    for query, hits in zip(options.queries, results, strict=True):
        table = Table("image", box=frame())
        table.add_column(escape(query), justify="right")
        for path, score in hits:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            table.add_row(escape(str(shown)), f"{score:.4f}")
        console().print(table)
    console().print(
        f"of {len(index)} images; higher is better; scores are no probabilities", markup=False
    )


def _serve(server: PageServer) -> None:
    """Answers until Ctrl-C."""
    with server:
        print(f"{server.address} (Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
