"""`vlmtune export --alphas`: what each step from the pre-trained to the trained weights scores."""

import argparse
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from vlmtune.benchmarks.base import Benchmark
from vlmtune.cli.devices import find_device
from vlmtune.cli.plugins import make_list
from vlmtune.cli.tables import console, frame
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import SuiteResult, load_all, run_suite
from vlmtune.export.wise_ft import WiseFT
from vlmtune.report.result import Result
from vlmtune.report.table import number

KINDS = ("compositional", "retained")
Point = tuple[float, SuiteResult]


def sweep(line: WiseFT, options: argparse.Namespace) -> list[Point]:
    """Measures the model at each alpha, shows the numbers and returns them.

    What is frozen is encoded once for all of them.

    Args:
        line: The model and its line of weights; it is left at the last alpha.
        options: `alphas`, `benchmarks`, `store`, `device` and `batch_size`.

    Raises:
        UserError: No benchmark can be run.
    """
    benchmarks = make_list(Benchmark, "benchmarks", options.benchmarks)  # type: ignore[type-abstract]
    load_all(benchmarks)
    device = find_device(options.device)
    parts = (line.backbone.to(device), line.adapter.to(device))
    scorer = Scorer(*parts, options.store, options.batch_size)
    points = []
    for alpha in options.alphas:
        line.at(alpha)
        points.append((alpha, run_suite(benchmarks, scorer)))
    show_points(points)
    return points


def show_points(points: Sequence[Point]) -> None:
    """Shows the primary numbers, what was to be learned beside what was to be retained.

    Each kind has the mean over its benchmarks first, then each of them.
    """
    first = points[0][1]
    columns = [[r.benchmark for r in first.results if r.kind == kind] for kind in KINDS]
    table = Table("alpha", box=frame())
    for kind, names in zip(KINDS, columns, strict=True):
        table.add_column(f"{kind} mean", justify="right", style="bold")
        for name in names:
            table.add_column(f"{kind}: {escape(name)}", justify="right")
    for alpha, suite in points:
        results = {result.benchmark: result for result in suite.results}
        cells = [f"{alpha:g}"]
        for names in columns:
            cells.append(_mean([results[name] for name in names if name in results]))
            cells += [_primary(results[name]) if name in results else "–" for name in names]
        table.add_row(*cells)
    console().print(table)
    for name, why in dict(pair for _, suite in points for pair in suite.not_run).items():
        console().print(f"not run: {name}: {why}", markup=False, soft_wrap=True)


def _primary(result: Result) -> str:
    metric = result.metrics[result.primary]
    return number(metric.value, metric.unit)


def _mean(results: Sequence[Result]) -> str:
    """The mean of the primary numbers that are fractions; ranks and counts have none in common."""
    metrics = [result.metrics[result.primary] for result in results]
    values = [m.value for m in metrics if m.unit == "fraction" and m.higher_is_better]
    return number(sum(values) / len(values), "fraction") if values else "–"
