"""Each run against the first one, item by item where the items are the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import PairedDifference, paired_difference
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Result
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import baseline, titled

LEVEL = 0.05  # p values below it are called a difference


@dataclass(frozen=True)
class Against:
    """The primary metric of a benchmark, one run against the baseline.

    Attributes:
        run: Position of the run.
        result: What the run scored.
        change: Its primary metric minus that of the baseline, or None where the two do not compare.
        paired: The test, item by item, or None.
        why: Why there is no test, or no change; "" where there is one.
    """

    run: int
    result: Result
    change: float | None
    paired: PairedDifference | None
    why: str

    @property
    def title(self) -> str:
        """The benchmark, with its convention where that is not the strict one."""
        return titled(self.result.benchmark, self.result.convention)

    @property
    def metric(self) -> MetricValue:
        """The primary metric of the run."""
        return self.result.metrics[self.result.primary]

    @property
    def direction(self) -> str:
        """How the number changed: "better", "worse", or "" where it did not or does not compare."""
        if not self.change:
            return ""
        return "better" if (self.change > 0) == self.metric.higher_is_better else "worse"

    @property
    def verdict(self) -> str:
        """What the test shows: "better", "worse", "no difference shown", or "" without a test."""
        if self.paired is None or self.paired.p is None:
            return ""
        shown = self.paired.p < LEVEL and self.direction
        return self.direction if shown else "no difference shown"


def against_first(runs: Sequence[RunReport]) -> tuple[Against, ...]:
    """Compares each run that is not blind with the first such run, benchmark by benchmark."""
    first = baseline(runs)
    if first is None:
        return ()
    base = {result.benchmark: result for result in runs[first].results}
    return tuple(
        _against(i, result, base.get(result.benchmark), runs[first].name)
        for i, run in enumerate(runs)
        if i != first and not run.text_only
        for result in run.results
    )


def _against(run: int, result: Result, base: Result | None, name: str) -> Against:
    if base is None:
        return Against(run, result, None, None, f"{name} has no number")
    if why := _incomparable(result, base):
        return Against(run, result, None, None, why)
    change = result.metrics[result.primary].value - base.metrics[base.primary].value
    if why := _unpaired(result, base):
        return Against(run, result, change, None, why)
    outcomes, old = (torch.tensor(x.outcomes, dtype=torch.float64) for x in (result, base))
    clusters = torch.tensor(result.clusters) if result.clusters else None
    paired = paired_difference(
        outcomes, old, clusters, groups=_groups(result), degree=result.degree
    )
    return Against(run, result, change, paired, "")


def _groups(result: Result) -> ItemGroups | None:
    """The groups whose mean the primary metric is; None where it is a plain mean over items."""
    if not result.groups:
        return None
    weights = torch.tensor(result.group_weights, dtype=torch.float64)
    return ItemGroups(torch.tensor(result.groups), weights if len(weights) else None)


def _incomparable(result: Result, base: Result) -> str:
    """Why the two numbers must not be subtracted; "" where they may."""
    for what in ("version", "convention", "primary"):
        one, other = getattr(result, what), getattr(base, what)
        if one != other:
            what = "primary metric" if what == "primary" else what
            return f"another {what}: {one}, not {other}"
    n, other = (x.metrics[x.primary].n for x in (result, base))
    if n == other and result.outcomes and base.outcomes:
        n, other = len(result.outcomes), len(base.outcomes)
    if n != other:
        return f"another number of items: {n}, not {other}"
    if result.items_digest and base.items_digest and result.items_digest != base.items_digest:
        return "other items of the same number"
    return ""


def _unpaired(result: Result, base: Result) -> str:
    """Why the items cannot be paired; "" where they can."""
    if not result.outcomes or not base.outcomes:
        return "the report has no outcomes of items"
    if result.clusters != base.clusters:
        return "the items stand in another order"
    if any(getattr(result, x) != getattr(base, x) for x in ("groups", "group_weights", "degree")):
        return "other items count, or in other groups"
    return ""
