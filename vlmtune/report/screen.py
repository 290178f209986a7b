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
from vlmtune.report.finding import findings
from vlmtune.report.printable import printable
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import KINDS, TITLES, Row, bracketed, facts, number, rows
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
    width = None if sys.stdout.isatty() else WIDE
    return _Screen(file=sys.stdout, width=width, highlight=False)


def frame() -> box.Box:
    """Lines on a terminal, Markdown elsewhere."""
    return box.SIMPLE_HEAD if sys.stdout.isatty() else box.MARKDOWN


def show(runs: Sequence[RunReport], title: str | None = None) -> None:
    """Shows the primary metrics of the runs, one column a run, and what was not run.

    A single run has all metrics of all items, primary ones bold, unless there is a title above.
    Counts and metrics of groups of items are in the report. Where the columns are wider than the
    screen, the runs stand below each other.
    """
    runs_with_images = sum(not run.text_only for run in runs)
    whole = title is None and runs_with_images == 1
    shown = []
    for row in rows(runs):
        of_all_items = "/" not in row.metric and row.first.unit != "count"
        if row.primary or (whole and of_all_items):
            shown.append(row)
    if title is not None:
        console().print(title, markup=False)
    for finding in findings(runs):
        say(finding)
    table = _side_by_side(runs, shown, whole)
    screen = console()
    # Rich squeezes a table into the screen, so its width is measured on a wide one.
    wide_screen = screen.options.update(width=WIDE)
    width = screen.measure(table, options=wide_screen).maximum
    if width > screen.width and len(runs) > 1:
        table = _stacked(runs, shown)
    screen.print(table)
    missing = []
    for run in runs:
        if run.provenance.random_weights:
            say(f"{run.name}: {RANDOM}")
        truncated = _truncated(run)
        if truncated:
            say(f"{run.name}: captions are longer than the model reads and truncated: {truncated}")
        for name, why in run.not_run:
            missing.append((f"{name} of {run.name}", why))
    show_not_run(missing)


def say(line: str) -> None:
    """Prints a line as it is, without styles and breaks; what is not UTF-8 is escaped."""
    letters = line.encode(errors="backslashreplace")
    console().print(letters.decode(), markup=False, soft_wrap=True)


def _truncated(run: RunReport) -> str:
    """The benchmarks with captions that the model does not read whole, and how many."""
    listed = []
    for result in run.results:
        metric = result.metrics.get(TRUNCATED)
        if metric is not None:
            listed.append(f"{result.benchmark} ({metric.value:.0f} of {metric.n})")
    return ", ".join(listed)


def _side_by_side(runs: Sequence[RunReport], shown: Sequence[Row], whole: bool) -> Table:
    """One column a run; of a narrow screen only names are folded."""
    table = Table(box=frame())
    for head in ("benchmark", "metric"):
        table.add_column(head, overflow="fold")
    names = [run.name for run in runs]
    for head in (*TITLES, *names):
        table.add_column(escape(head), justify="right", no_wrap=True)
    for row in shown:
        cells = [escape(row.title), escape(row.directed)]
        cells += facts(row)
        cells += [escape(bracketed(cell)) for cell in row.cells]
        style = "bold" if whole and row.primary else None
        table.add_row(*cells, style=style)
    return table


def _stacked(runs: Sequence[RunReport], shown: Sequence[Row]) -> Table:
    """One line a run, below a line for each metric."""
    table = Table(box=frame())
    table.add_column("", overflow="fold")
    for head in (*TITLES, ""):
        table.add_column(head, justify="right", no_wrap=True)
    blank = [""] * len(TITLES)
    for row in shown:
        title = escape(f"{row.title} {row.directed}")
        table.add_row(title, *facts(row), style="bold")
        for run, cell in zip(runs, row.cells, strict=True):
            name = escape(f"  {run.name}")
            table.add_row(name, *blank, escape(bracketed(cell)))
    return table


def primary_line(result: Result) -> str:
    """The primary metric of a benchmark, for one line.

    Example:
        >>> primary_line(Result("cola", "1", "accuracy", {"accuracy": MetricValue(0.5, 4, 0.25)}))
        'cola accuracy 50.0 %'
    """
    metric = result.metrics[result.primary]
    return f"{result.benchmark} {result.primary} {bracketed(metric)}"


def show_not_run(pairs: Sequence[tuple[str, str]]) -> None:
    """Shows the benchmarks without results, each once: its name and the reason."""
    for name, why in dict(pairs).items():
        say(f"not run: {name}: {why}")


def show_alphas(suites: Mapping[float, Sequence[Result]]) -> None:
    """Shows the primary metrics at each alpha of WiSE-FT, with the mean of each kind."""
    # The first suite names the benchmarks: another one may lack some.
    first_suite = next(iter(suites.values()))
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for result in first_suite:
        names.setdefault(result.kind, []).append(result.benchmark)
    table = Table("alpha", box=frame())
    for kind in KINDS:
        table.add_column(f"{kind} mean", justify="right", style="bold")
        for name in names[kind]:
            table.add_column(f"{kind}: {escape(name)}", justify="right")
    for alpha, results in suites.items():
        # An alpha whose benchmark failed has no number, and its cell a dash.
        primary = {result.benchmark: result.metrics[result.primary] for result in results}
        cells = [f"{alpha:g}"]
        for kind in KINDS:
            metrics = [primary.get(name) for name in names[kind]]
            cells.append(_mean(metrics))
            cells += map(_plain_cell, metrics)
        table.add_row(*cells)
    console().print(table)


def _mean(metrics: Sequence[MetricValue | None]) -> str:
    """The mean of the metrics that are fractions; ranks and counts are left out."""
    values = []
    for metric in metrics:
        if metric is None:
            return "–"  # a mean over fewer benchmarks is another number
        if metric.unit == "fraction" and metric.higher_is_better:
            values.append(metric.value)
    if not values:
        return "–"
    return number(sum(values) / len(values), "fraction")


def _plain_cell(metric: MetricValue | None) -> str:
    return "–" if metric is None else number(metric.value, metric.unit)
