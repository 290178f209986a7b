"""Each run against the first one, item by item if both scored the same items.

In: the runs of a report. Out: differences, tests, or the reason why two numbers do not compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import PairedDifference, paired_difference
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Result
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import baseline, titled

LEVEL = 0.05  # a p value below it counts as a difference


@dataclass(frozen=True)
class Comparison:
    """The primary metric of a benchmark, one run against the baseline.

    Attributes:
        run: Position of the run.
        result: The result of the run.
        change: Its primary metric minus that of the baseline, or None if the two do not compare.
        paired: The test, item by item, or None.
        reason: Why there is no test, or no change; "" if there is one.
    """

    run: int
    result: Result
    change: float | None
    paired: PairedDifference | None
    reason: str

    @property
    def title(self) -> str:
        """The benchmark, with its convention unless that is the strict one."""
        return titled(self.result.benchmark, self.result.convention)

    @property
    def metric(self) -> MetricValue:
        """The primary metric of the run."""
        return self.result.metrics[self.result.primary]

    @property
    def direction(self) -> str:
        """How the number changed: "better", "worse", or "" if it did not or does not compare."""
        if not self.change:
            return ""
        return "better" if (self.change > 0) == self.metric.higher_is_better else "worse"

    @property
    def verdict(self) -> str:
        """The outcome of the test: "better", "worse", "not significant", or "" without a test."""
        if self.paired is None or self.paired.p is None:
            return ""
        return (self.paired.p < LEVEL and self.direction) or "not significant"


def compare_with_first(runs: Sequence[RunReport]) -> tuple[Comparison, ...]:
    """Compares each run with the first, benchmark by benchmark; text-only runs are left out."""
    first = baseline(runs)
    if first is None:
        return ()
    base = {result.benchmark: result for result in runs[first].results}
    return tuple(
        _compare(i, result, base.get(result.benchmark), runs[first].name)
        for i, run in enumerate(runs)
        if i != first and not run.text_only
        for result in run.results
    )


def _compare(run: int, result: Result, base: Result | None, name: str) -> Comparison:
    if base is None:
        return Comparison(run, result, None, None, f"{name} has no number")
    if reason := _incomparable(result, base):
        return Comparison(run, result, None, None, reason)
    change = result.metrics[result.primary].value - base.metrics[base.primary].value
    if reason := _unpaired(result, base):
        return Comparison(run, result, change, None, reason)
    new, old = (torch.tensor(x.outcomes, dtype=torch.float64) for x in (result, base))
    clusters = torch.tensor(result.clusters) if result.clusters else None
    paired = paired_difference(new, old, clusters, groups=_groups(result), degree=result.degree)
    return Comparison(run, result, change, paired, "")


def _groups(result: Result) -> ItemGroups | None:
    """The groups of a primary metric that is a mean over groups."""
    if not result.groups:
        return None
    weights = torch.tensor(result.group_weights, dtype=torch.float64)
    return ItemGroups(torch.tensor(result.groups), weights if len(weights) else None)


def _incomparable(result: Result, base: Result) -> str:
    """Why the two numbers must not be subtracted; "" if they may."""
    for field in ("version", "convention", "primary"):
        here, there = getattr(result, field), getattr(base, field)
        if here != there:
            field = "primary metric" if field == "primary" else field
            return f"another {field}: {here}, not {there}"
    n, other = (x.metrics[x.primary].n for x in (result, base))
    if n == other and result.outcomes and base.outcomes:
        n, other = len(result.outcomes), len(base.outcomes)
    if n != other:
        return f"another number of items: {n}, not {other}"
    if result.items_digest and base.items_digest and result.items_digest != base.items_digest:
        return "the same number of items, but other ones"
    return ""


def _unpaired(result: Result, base: Result) -> str:
    """Why the items cannot be paired; "" if they can."""
    if not result.outcomes or not base.outcomes:
        return "the report has no outcomes of items"
    if result.clusters != base.clusters:
        return "the items are in another order"
    if any(getattr(result, x) != getattr(base, x) for x in ("groups", "group_weights", "degree")):
        return "the items are grouped or weighted in another way"
    return ""
