"""What runs gained and lost against the first one, in a sentence each: what a report says first.

In: the comparisons of runs. Out: sentences. Never: a number that the tables lack.
"""

from collections.abc import Sequence

from vlmtune.errors import counted
from vlmtune.report.differences import BY_CHANCE, LEVEL, Comparison, compare_with_first, items_alone
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import seeds_of
from vlmtune.report.table import amount, baseline


def findings(runs: Sequence[RunReport]) -> list[str]:
    """A sentence for each tested run, the one that rose most often first; then the rule, last.

    It names the largest significant gain on a compositional benchmark, counts the compositional
    ones that rose and fell significantly and the retained ones that fell, and says the seeds.
    """
    first = baseline(runs)
    tested: dict[int, list[Comparison]] = {}
    for comparison in compare_with_first(runs):
        if comparison.verdict and comparison.result.kind != "sensitivity":
            tested.setdefault(comparison.run, []).append(comparison)
    if first is None or not tested:
        return []
    alone = items_alone(runs)
    sentences = []
    for run, comparisons in tested.items():
        parts = [*_gained(comparisons), *_forgotten(comparisons)]
        seeds = len(seeds_of(runs[run]))
        if seeds > 1:
            parts.append(f"{seeds} seeds")
        elif runs[run].name in alone:
            parts.append("one seed")
        risen = len(_changed(comparisons, "better"))
        fallen = len(_changed(comparisons, "worse"))
        name = f"{runs[run].name} against {runs[first].name}"
        sentences.append((risen - fallen, f"{name}: {'; '.join(parts)}."))
    # Sorting is stable: runs with equal balance keep their order.
    sentences.sort(key=lambda sentence: -sentence[0])
    tests = sum(map(len, tested.values()))
    rule = (
        f"Risen and fallen: the paired test of the primary metric has p < {LEVEL}. Tests: {tests}, "
        f"not corrected for their number; by chance about {BY_CHANCE} has such a p."
    )
    return [*(sentence for _, sentence in sentences), rule]


def _gained(tested: Sequence[Comparison]) -> list[str]:
    """The largest gain, and how many compositional measures rose and fell."""
    compositional = [one for one in tested if one.result.kind == "compositional"]
    if not compositional:
        return []
    risen = _changed(compositional, "better")
    fallen = _changed(compositional, "worse")
    measures = counted(len(compositional), "compositional measure")
    text = f"{len(risen)} of {measures} rose significantly"
    if fallen:
        text += f", {len(fallen)} fell"
    return [*_largest(risen), text]


def _forgotten(tested: Sequence[Comparison]) -> list[str]:
    """How many retained measures fell, and the largest fall."""
    retained = [one for one in tested if one.result.kind == "retained"]
    if not retained:
        return []
    fallen = _changed(retained, "worse")
    measures = counted(len(retained), "retained measure")
    text = f"{len(fallen)} of {measures} fell significantly"
    for largest in _largest(fallen):
        text += f", most {largest}"
    return [text]


def _changed(tested: Sequence[Comparison], verdict: str) -> list[Comparison]:
    return [one for one in tested if one.verdict == verdict]


def _largest(changed: Sequence[Comparison]) -> list[str]:
    """The largest change with its interval, in points before other units; none without changes."""
    in_points = [one for one in changed if one.metric.unit == "fraction"]
    candidates = in_points or changed
    if not candidates:
        return []
    largest = max(candidates, key=lambda one: abs(one.change or 0.0))
    size = amount(largest.change or 0.0, largest.metric.unit)
    interval = largest.texts["interval"]
    if interval:
        size = f"{size} [{interval}]"
    return [f"{size} on {largest.name}"]
