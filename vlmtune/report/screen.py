"""Tables on the screen, or Markdown if the output goes to a file or a pipe.

In: runs and their results. Out: lines on stdout. Never: a number that report.json lacks.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from vlmtune.report.caveats import RANDOM
from vlmtune.report.printable import printable
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import KINDS, Row, chance, interval, number, rows, size
from vlmtune.results.metric_value import TRUNCATED, MetricValue
from vlmtune.results.result import Result

WIDE = 10_000  # columns if the output is not a screen


class _Screen(Console):
    """A console whose texts have no control characters; only its own styles have."""

    @override
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def console() -> Console:
    """The standard output."""
    return _Screen(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE, highlight=False)


def frame() -> box.Box:
    """Lines on a terminal, Markdown elsewhere."""
    return box.SIMPLE_HEAD if sys.stdout.isatty() else box.MARKDOWN


def show(runs: Sequence[RunReport], title: str | None = None) -> None:
    """Shows the primary metrics of the runs, one column a run, and what was not run.

    A single run has all metrics of all items, primary ones bold, unless there is a title above.
    Counts and metrics of groups of items are in the report. Where the columns are wider than the
    screen, the runs stand below each other.
    """
    whole = title is None and sum(not run.text_only for run in runs) == 1
    shown = [
        row
        for row in rows(runs)
        if row.primary or (whole and "/" not in row.metric and row.first.unit != "count")
    ]
    if title is not None:
        console().print(title, markup=False)
    table, screen = _side_by_side(runs, shown, whole), console()
    full = screen.measure(table, options=screen.options.update(width=WIDE)).maximum
    screen.print(_stacked(runs, shown) if full > screen.width and len(runs) > 1 else table)
    for run in runs:
        if run.provenance.random_weights:
            console().print(f"{run.name}: {RANDOM}", markup=False, soft_wrap=True)
        cut = [(x.benchmark, x.metrics[TRUNCATED]) for x in run.results if TRUNCATED in x.metrics]
        if cut:
            listed = ", ".join(f"{name} ({m.value:.0f} of {m.n})" for name, m in cut)
            line = f"{run.name}: captions are longer than the model reads and truncated: {listed}"
            console().print(line, markup=False, soft_wrap=True)
    show_not_run([(f"{name} of {run.name}", why) for run in runs for name, why in run.not_run])


def _side_by_side(runs: Sequence[RunReport], shown: Sequence[Row], whole: bool) -> Table:
    """One column a run; of a narrow screen only names are folded."""
    table = Table(box=frame())
    for head in ("benchmark", "metric"):
        table.add_column(head, overflow="fold")
    for head in ("n", "chance", *[run.name for run in runs]):
        table.add_column(escape(head), justify="right", no_wrap=True)
    for row in shown:
        metric = f"{row.metric} {row.arrow}".strip()
        facts = (escape(row.title), escape(metric), size(row.sized), chance(row.first))
        style = "bold" if whole and row.primary else None
        table.add_row(*facts, *map(_cell, row.cells), style=style)
    return table


def _stacked(runs: Sequence[RunReport], shown: Sequence[Row]) -> Table:
    """One line a run, below a line for each metric."""
    table = Table(box=frame())
    table.add_column("", overflow="fold")
    for head in ("n", "chance", ""):
        table.add_column(head, justify="right", no_wrap=True)
    for row in shown:
        name = escape(f"{row.title} {row.metric} {row.arrow}".strip())
        table.add_row(name, size(row.sized), chance(row.first), style="bold")
        for run, cell in zip(runs, row.cells, strict=True):
            table.add_row(escape(f"  {run.name}"), "", "", _cell(cell))
    return table


def primary_line(result: Result) -> str:
    """The primary metric of a benchmark, for one line.

    Example:
        >>> primary_line(Result("cola", "1", "accuracy", {"accuracy": MetricValue(0.5, 4, 0.25)}))
        'cola accuracy 50.0 %'
    """
    metric = result.metrics[result.primary]
    span = interval(metric)
    text = f"{result.benchmark} {result.primary} {number(metric.value, metric.unit)}"
    return f"{text} [{span}]" if span else text


def show_not_run(pairs: Sequence[tuple[str, str]]) -> None:
    """Shows the benchmarks without results, each once: its name and the reason."""
    for name, why in dict(pairs).items():
        console().print(f"not run: {name}: {why}", markup=False, soft_wrap=True)


def show_alphas(suites: Mapping[float, Sequence[Result]]) -> None:
    """Shows the primary metrics at each alpha of WiSE-FT, with the mean of each kind."""
    first = next(iter(suites.values()))
    columns = [[result.benchmark for result in first if result.kind == kind] for kind in KINDS]
    table = Table("alpha", box=frame())
    for kind, names in zip(KINDS, columns, strict=True):
        table.add_column(f"{kind} mean", justify="right", style="bold")
        for name in names:
            table.add_column(f"{kind}: {escape(name)}", justify="right")
    for alpha, results in suites.items():
        metrics = {result.benchmark: result.metrics[result.primary] for result in results}
        cells = [f"{alpha:g}"]
        for names in columns:
            primary = [metrics.get(name) for name in names]
            cells.append(_mean([metric for metric in primary if metric]))
            cells += [number(metric.value, metric.unit) if metric else "–" for metric in primary]
        table.add_row(*cells)
    console().print(table)


def _mean(metrics: Sequence[MetricValue]) -> str:
    """The mean of the metrics that are fractions; ranks and counts are left out."""
    values = [m.value for m in metrics if m.unit == "fraction" and m.higher_is_better]
    return number(sum(values) / len(values), "fraction") if values else "–"


def _cell(metric: MetricValue | None) -> str:
    if metric is None:
        return "–"
    span = interval(metric)
    text = number(metric.value, metric.unit)
    return f"{text} {escape(f'[{span}]')}" if span else text
