"""Each run against the first one, item by item if both scored the same items, and over seeds.

In: the runs of a report. Out: differences, tests, or the reason why two numbers do not compare.
Never: a test of items that are not the same.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import PairedDifference, paired_difference, seeded_difference
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import seeds_of
from vlmtune.report.table import baseline, change, direction, p_value, signed_interval, titled
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Result

LEVEL = 0.05  # a p value below it counts as a difference
BY_CHANCE = f"one in {1 / LEVEL:.0f}"  # tests that find a difference where there is none
TEST = (
    "p: McNemar's exact test if every item is right or wrong and no two items share an image or "
    "captions; else Student's t over clusters of such items, with their weights if the metric is a "
    "mean over groups. Where a run has several seeds, these count, too, and one seed of another "
    "training is taken to vary as much; so do the runs of probes. "
    f"A difference is significant if p is below {LEVEL}; p values are not corrected for "
    "multiple tests."
)
CELLS: tuple[str, ...] = ("change", "interval", "won", "lost", "n", "p", "test")


@dataclass(frozen=True)
class Comparison:
    """The primary metric of a benchmark, one run against the baseline."""

    run: int  # its position
    result: Result
    change: float | None  # None if the two numbers do not compare
    paired: PairedDifference | None  # the test, item by item
    reason: str  # why there is no test, or no change

    @property
    def title(self) -> str:
        """The benchmark, with its convention unless that is the strict one."""
        return titled(self.result.benchmark, self.result.convention)

    @property
    def name(self) -> str:
        """The title for people."""
        return titled(self.result.title or self.result.benchmark, self.result.convention)

    @property
    def metric(self) -> MetricValue:
        """The primary metric of the run."""
        return self.result.metrics[self.result.primary]

    @property
    def direction(self) -> str:
        """How the number changed, "better" or "worse"; "" if it did not or does not compare.

        An embedding gets "more sensitive" or "less sensitive", which is neither.
        """
        if self.change and self.result.kind == "sensitivity":
            return "more sensitive" if self.change > 0 else "less sensitive"
        return direction(self.change or 0.0, self.metric.higher_is_better)

    @property
    def verdict(self) -> str:
        """The outcome of the test: the direction, "not significant", or "" without a test."""
        if self.paired is None or self.paired.p is None:
            return ""
        if self.paired.p < LEVEL and self.direction:
            return self.direction
        return "not significant"

    @property
    def texts(self) -> dict[str, str]:
        """The cells of a table's line; "" for what is not known."""
        unit = self.metric.unit
        paired = self.paired
        cells: dict[str, str] = dict.fromkeys(CELLS, "")
        if self.change is not None:
            cells["change"] = change(self.change, unit)
        if paired is not None:
            cells["interval"] = signed_interval(paired.low, paired.high, unit)
            cells["won"] = str(paired.won)
            cells["lost"] = str(paired.lost)
            cells["n"] = str(paired.n)
            cells["test"] = paired.test
            if paired.p is not None:
                cells["p"] = p_value(paired.p)
        return cells


_LATEST: list[tuple[tuple[RunReport, ...], tuple[Comparison, ...]]] = []  # of the latest call


def compare_with_first(runs: Sequence[RunReport]) -> tuple[Comparison, ...]:
    """Compares each run with the first, benchmark by benchmark; text-only runs are left out."""
    first = baseline(runs)
    if first is None:
        return ()
    # The tables, the sentences and the page of a report ask in turn for the same comparisons.
    for latest, comparisons in _LATEST:
        if len(latest) == len(runs) and all(map(operator.is_, latest, runs)):
            return comparisons
    out = []
    for i, run in enumerate(runs):
        if i == first or run.text_only:
            continue
        for result in run.results:
            base = runs[first].of(result.benchmark)
            out.append(_compare(i, result, base, run, runs[first]))
    _LATEST[:] = [(tuple(runs), tuple(out))]
    return tuple(out)


def _compare(
    i: int, result: Result, base: Result | None, run: RunReport, first: RunReport
) -> Comparison:
    if base is None:
        return Comparison(i, result, None, None, f"{first.name} has no number")
    if reason := _incomparable(result, base):
        return Comparison(i, result, None, None, reason)
    after = result.metrics[result.primary]
    before = base.metrics[base.primary]
    gain = after.value - before.value
    if reason := _unpaired(result, base):
        return Comparison(i, result, gain, None, reason)
    paired = _tested(result, base, run, first)
    return Comparison(i, result, gain, paired, "")


def _tested(result: Result, base: Result, run: RunReport, first: RunReport) -> PairedDifference:
    """The test of two results on the same items."""
    # Rows are seeds or runs, columns are the same items on both sides.
    # Runs of one measurement are drawn in pairs; seeds of two trainings have nothing in common.
    repeated_in_pairs = bool(result.runs) and len(result.runs) == len(base.runs)
    new = _outcomes(run, result.benchmark, repeated_in_pairs)
    old = _outcomes(first, result.benchmark, repeated_in_pairs)
    ways = result.cluster_ways
    clusters = torch.from_numpy(np.array(ways)).T if ways else None
    is_fraction = result.metrics[result.primary].unit == "fraction"
    bound = 1.0 if is_fraction else math.inf
    options = {"groups": item_groups(result), "degree": result.degree, "bound": bound}
    if repeated_in_pairs:
        return seeded_difference(new, old, clusters, paired=True, **options)
    if len(new) == len(old) == 1:
        return paired_difference(new[0], old[0], clusters, **options)
    # A frozen model is the same under any seed.
    varies = (_varies(run), _varies(first))
    return seeded_difference(new, old, clusters, varies=varies, **options)


def items_alone(runs: Sequence[RunReport]) -> tuple[str, ...]:
    """Names of the trained runs of one seed that are tested against a run of one seed.

    Such a test knows nothing of how other seeds would differ.
    """
    position = baseline(runs)
    if position is None or len(seeds_of(runs[position])) > 1:
        return ()
    # The baseline counts, too: it may itself be a training with one seed.
    seeing = [run for run in runs if not run.text_only]
    single = [run for run in seeing if len(seeds_of(run)) == 1]
    if len(single) == 1:
        return ()
    return tuple(run.name for run in single if run.provenance.trainable_parameters)


def note_on_tests(runs: Sequence[RunReport]) -> str:
    """What the tests are, and which runs of one seed they say too little of."""
    single = ", ".join(items_alone(runs))
    if not single:
        return TEST
    return (
        f"{TEST} Other seeds of the training were not tested: p does not tell how much another one "
        f"would change. One seed each: {single}."
    )


def _varies(run: RunReport) -> bool:
    """Whether another seed would change the run; of another tool's run that is unknown."""
    return bool(run.provenance.trainable_parameters) or not run.provenance.known


def _outcomes(run: RunReport, benchmark: str, repeated: bool) -> Float[Tensor, "S n"]:
    """The outcomes of each seed of a run; if `repeated`, those of each run of its measurement."""
    of_seeds = [seed.of(benchmark) for seed in seeds_of(run)]
    results = list(filter(None, of_seeds))
    rows = [result.outcomes for result in results]
    if repeated and len(results) == 1:
        rows = list(results[0].runs)
    # numpy reads Python's numbers several times as fast as torch.
    return torch.from_numpy(np.array(rows, np.float64))


def item_groups(result: Result) -> ItemGroups | None:
    """The groups of a primary metric that is a mean over groups, else None."""
    if not result.groups:
        return None
    weights = None
    if result.group_weights:
        weights = torch.tensor(result.group_weights, dtype=torch.float64)
    return ItemGroups(torch.tensor(result.groups), weights)


def _incomparable(result: Result, base: Result) -> str:
    """Why the two numbers must not be subtracted; "" if they may."""
    for field in ("version", "convention", "primary"):
        value = getattr(result, field)
        base_value = getattr(base, field)
        if value != base_value:
            name = "primary metric" if field == "primary" else field
            return f"another {name}: {value}, not {base_value}"
    n = result.metrics[result.primary].n
    base_n = base.metrics[base.primary].n
    # A mean over groups counts the groups: the items themselves may differ in number.
    if n == base_n and result.outcomes and base.outcomes:
        n = len(result.outcomes)
        base_n = len(base.outcomes)
    if n != base_n:
        return f"another number of items: {n}, not {base_n}"
    digests_known = result.items_digest and base.items_digest
    if digests_known and result.items_digest != base.items_digest:
        return "the same number of items, but different items"
    return ""


def _unpaired(result: Result, base: Result) -> str:
    """Why the items cannot be paired; "" if they can."""
    if not result.outcomes or not base.outcomes:
        return "the report has no outcomes of items"
    if result.clusters != base.clusters:
        return "the items are in another order"
    weighting = (result.groups, result.group_weights, result.degree)
    base_weighting = (base.groups, base.group_weights, base.degree)
    if weighting != base_weighting:
        return "the items are grouped or weighted in another way"
    return ""
