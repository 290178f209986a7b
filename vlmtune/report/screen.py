"""Tables on the screen, or Markdown if the output goes to a file or a pipe."""

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vlmtune.metrics.value import MetricValue
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import chance, interval, number, rows

WIDE = 400  # columns if the output is no screen


def console() -> Console:
    """The standard output."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE, highlight=False)


def frame() -> box.Box:
    """Lines on a terminal, Markdown elsewhere."""
    return box.SIMPLE_HEAD if sys.stdout.isatty() else box.MARKDOWN


def show(runs: Sequence[RunReport]) -> None:
    """Shows every metric of the runs, one column a run, primary ones bold, and what was not run."""
    table = Table("benchmark", "metric", box=frame())
    for head in ("n", "chance", *[run.name for run in runs]):
        table.add_column(escape(head), justify="right")
    for row in rows(runs):
        cells = [_cell(cell) for cell in row.cells]
        metric = f"{row.metric} {row.arrow}".strip()
        facts = (escape(row.title), escape(metric), str(row.first.n), chance(row.first))
        table.add_row(*facts, *cells, style="bold" if row.primary else None)
    console().print(table)
    for run in runs:
        for name, why in run.not_run:
            console().print(f"not run: {name} of {run.name}: {why}", markup=False, soft_wrap=True)


def _cell(metric: MetricValue | None) -> str:
    if metric is None:
        return "–"
    span = interval(metric)
    text = number(metric.value, metric.unit)
    return f"{text} {escape(f'[{span}]')}" if span else text
