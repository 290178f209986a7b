"""`vlmtune download`: brings data sets and weights to where vlmtune looks for them.

In: names of sources, or of what reads them. Out: files below the data folder. Never: a file of a
person overwritten.
"""

import argparse
import os
from collections.abc import Sequence

from vlmtune.config import DATA, data_root
from vlmtune.errors import UserError
from vlmtune.sources.downloads import download
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.listing import has_steps, list_lines, plan_lines
from vlmtune.sources.order import Order, orders


def run(options: argparse.Namespace) -> None:
    """Downloads `options.names` and `options.weights`, or shows what is or would come."""
    if options.data_root is not None:
        os.environ[DATA] = str(options.data_root)
    root = data_root()
    if options.list:
        print("\n".join(list_lines(Ledger(root))))
        return
    names = [*options.names, *options.weights]
    if not names:
        raise UserError("expected names to download, got none: `vlmtune download --list` shows all")
    wanted = orders(names, options.whole)
    print("\n".join(plan_lines(wanted, Ledger(root))))
    if options.dry_run:
        return
    if options.given is not None and not options.given.is_dir():
        raise UserError(f"expected a folder by --from, got {options.given}: correct the path")
    download(wanted, accepted=options.accept, given=options.given)
    _say_what_is_here(wanted)


def _say_what_is_here(wanted: Sequence[Order]) -> None:
    """Names what is whole, what a person still has to do, and the next command."""
    benchmarks = []
    for order in wanted:
        if has_steps(order):
            came = "what vlmtune can fetch is here" if order.files else "nothing came"
            print(f"{order.name}: {came}; the steps above are yours")
            continue
        if order.source.access == "shipped":
            print(f"{order.name}: comes with vlmtune")
        else:
            print(f"{order.name}: whole, in {data_root()}")
        for name in order.source.serves.benchmarks:
            if not order.readers or name in order.readers:
                benchmarks.append(name)
    if benchmarks:
        print(f"next: vlmtune evaluate --model MODEL --benchmarks {' '.join(benchmarks)}")
