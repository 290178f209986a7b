"""`vlmtune search`: shows which images of an index fit captions best, as a table or a page.

In: the folder of an index. Out: tables on stdout, or a page on this machine. Never: a file.
"""

import argparse
import contextlib
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from vlmtune.cli.plugins import model_of
from vlmtune.cli.score import warn_truncated
from vlmtune.errors import UserError
from vlmtune.model.resolving import device_of_this_machine
from vlmtune.report.screen import console, frame
from vlmtune.search.index import Index
from vlmtune.search.page import PageServer


def run(options: argparse.Namespace) -> None:
    """Shows the best images of `options.index` for each caption of `options.queries`.

    Files below the working directory are shown by their relative paths.
    """
    if bool(options.queries) == options.page:
        raise UserError("expected captions, or --page without any: give one of them")
    model = None if options.model is None else model_of(options)
    device = device_of_this_machine(options.device)
    index = Index.open(options.index, model, device, options.packages, options.batch_size)
    if options.page:
        with PageServer(index, options.port, options.top, options.recall) as server:
            print(f"{server.address} (Ctrl-C ends it)")
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    here = Path.cwd()
    results = index.search_all(options.queries, options.top, options.recall)
    warn_truncated(index.too_long(options.queries))
    for query, hits in zip(options.queries, results, strict=True):
        table = Table("image", box=frame())
        table.add_column(escape(query), justify="right")
        for path, score in hits:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            table.add_row(escape(str(shown)), f"{score:.4f}")
        console().print(table)
    note = f"of {len(index)} images; higher is better; scores are not probabilities"
    console().print(note, markup=False)
