"""Runs of one recipe with several seeds as one column: mean, and range over the seeds.

In: runs of one name. Out: a run whose numbers are means, which holds the runs of its seeds.
Never: a test; `differences` has it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlmtune.errors import UserError
from vlmtune.report.run_report import Curve, RunReport
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Result


@dataclass(frozen=True)
class SeededRun(RunReport):
    """A recipe: the runs of its seeds, and their mean under the fields of a run.

    Metrics are means; `low` and `high` are the lowest and the highest seed. Outcomes, series and
    curves are means, too. A benchmark that a seed lacks, or has under another version or of other
    items, is not run.

    Attributes:
        runs: The run of each seed.
    """

    runs: tuple[RunReport, ...] = ()

    @property
    def seeds(self) -> str:
        """The seeds, for people."""
        return ", ".join(str(run.provenance.seed) for run in self.runs)


def seeds_of(run: RunReport) -> tuple[RunReport, ...]:
    """The runs of the seeds; the run itself if it is of one.

    Example:
        >>> from vlmtune.report.run_report import Provenance
        >>> run = RunReport("a", Provenance("b", "a", {}, "", "", {}, {}, "", "", 3, 0, 0.0), ())
        >>> [one.provenance.seed for one in seeds_of(run)]
        [3]
    """
    return run.runs if isinstance(run, SeededRun) else (run,)


def over_seeds(name: str, runs: Sequence[RunReport]) -> SeededRun:
    """Returns the recipe `name` of several runs; raises `UserError` unless their seeds differ."""
    # Equal seeds would be one training counted twice.
    seeds = [run.provenance.seed for run in runs]
    if not runs or None in seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"expected runs of {name} with different seeds, got {seeds}: rename some")
    # A benchmark that only some seeds have would be a mean over other runs.
    by_benchmark: dict[str, list[Result]] = {}
    for run in runs:
        for result in run.results:
            by_benchmark.setdefault(result.benchmark, []).append(result)
    results = []
    missing: dict[str, str] = {}
    for benchmark, several in by_benchmark.items():
        # Numbers over other items, or of another definition, have no mean.
        versions = set()
        for result in several:
            n = result.metrics[result.primary].n
            versions.add((result.definition, result.primary, n, result.items_digest))
        if len(several) == len(runs) and len(versions) == 1:
            results.append(_mean_result(several))
        else:
            reason = f"{len(several)} of {len(runs)} seeds have it, in {len(versions)} versions"
            missing[benchmark] = reason
    for run in runs:
        for benchmark, reason in run.not_run:
            if benchmark not in by_benchmark:
                missing.setdefault(benchmark, reason)
    first = runs[0].provenance
    seconds = sum(run.provenance.seconds for run in runs)
    return SeededRun(
        name=f"{name} (mean and range of {len(runs)} seeds)",
        provenance=replace(first, seed=None, seconds=seconds),
        results=tuple(results),
        curves=_mean_curves(runs),
        not_run=tuple(missing.items()),
        runs=tuple(runs),
    )


def _mean_result(results: Sequence[Result]) -> Result:
    first = results[0]
    metrics = {}
    for name in first.metrics:
        of_seeds = [result.metrics.get(name) for result in results]
        mean = _mean_metric(of_seeds)
        if mean is not None:
            metrics[name] = mean
    series = {}
    for name in first.series:
        of_seeds = [result.series.get(name, ()) for result in results]
        series[name] = _mean(of_seeds)
    # A mean by position needs the same items in the same order.
    outcomes: tuple[float, ...] = ()
    orders = {(result.items_digest, result.clusters, result.groups) for result in results}
    if len(orders) == 1:
        of_seeds = [result.outcomes for result in results]
        outcomes = _mean(of_seeds)
    return replace(first, metrics=metrics, outcomes=outcomes, runs=(), series=series)


def _mean_metric(metrics: Sequence[MetricValue | None]) -> MetricValue | None:
    """Mean and range; None where a seed has no such number, or one over other items."""
    known = [metric for metric in metrics if metric is not None]
    sizes = {metric.n for metric in known}
    if len(known) < len(metrics) or len(sizes) > 1:
        return None
    values = [metric.value for metric in known]
    # The range in place of an interval: of few seeds a deviation says little.
    # Exact: the mean of equal values is that value.
    mean = statistics.mean(values)
    return replace(known[0], value=mean, low=min(values), high=max(values))


def _mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """The mean of each position; nothing if the rows differ in length."""
    lengths = set(map(len, rows))
    if len(lengths) > 1:
        return ()
    by_position = zip(*rows, strict=True)
    return tuple(sum(values) / len(rows) for values in by_position)


def _mean_curves(runs: Sequence[RunReport]) -> dict[str, Curve]:
    """The mean of each curve at the steps where every seed has a value."""
    curves = {}
    for name in runs[0].curves:
        several = [dict(run.curves.get(name, ())) for run in runs]
        points = []
        for step in several[0]:
            values = [curve.get(step) for curve in several]
            known = [value for value in values if value is not None]
            if len(known) == len(runs):
                points.append((step, sum(known) / len(known)))
        curves[name] = tuple(points)
    return curves
