"""What runs gained and lost against the first one, in a sentence each: what a report says first.

In: the comparisons of runs. Out: sentences. Never: a number that the tables lack.
"""

from collections.abc import Sequence

from vlmtune.report.differences import LEVEL, Comparison, compare_with_first, items_alone
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import seeds_of
from vlmtune.report.table import amount, baseline


def findings(runs: Sequence[RunReport]) -> list[str]:
    """A sentence for each tested run, the one that rose most often first; then the rule, last.

    It names the largest significant gain on a compositional benchmark, counts the compositional
    ones that rose and fell significantly and the retained ones that fell, and says the seeds.
    Without tests there is nothing to say.
    """
    first = baseline(runs)
    tested: dict[int, list[Comparison]] = {}
    for comparison in compare_with_first(runs):
        if comparison.verdict and comparison.result.kind != "sensitivity":
            tested.setdefault(comparison.run, []).append(comparison)
    if first is None or not tested:
        return []
    alone = items_alone(runs)
    order = sorted(tested, key=lambda run: _fallen(tested[run]) - _risen(tested[run]))
    lines = []
    for run in order:
        count = len(seeds_of(runs[run]))
        seeds = f"; {count} seeds" if count > 1 else ""
        if runs[run].name in alone:
            seeds = "; one seed"
        head = f"{runs[run].name} against {runs[first].name}"
        lines.append(f"{head}: {_sentence(tested[run])}{seeds}.")
    tests = sum(map(len, tested.values()))
    lines.append(
        f"Risen and fallen are primary metrics whose paired test has p < {LEVEL}. That is not "
        f"corrected for {tests} tests: about {LEVEL * tests:.1f} of them would by chance."
    )
    return lines


def _sentence(tested: Sequence[Comparison]) -> str:
    compositional = [one for one in tested if one.result.kind == "compositional"]
    retained = [one for one in tested if one.result.kind == "retained"]
    parts = []
    if compositional:
        risen = _largest(compositional, "better")
        if risen:
            parts.append(risen)
        fallen = f", {_fallen(compositional)} fell" if _fallen(compositional) else ""
        of = f"{_risen(compositional)} of {len(compositional)}"
        parts.append(f"{of} compositional measures rose significantly{fallen}")
    if retained:
        of = f"{_fallen(retained)} of {len(retained)} retained measures fell significantly"
        largest = _largest(retained, "worse")
        parts.append(f"{of}, most {largest}" if largest else of)
    return "; ".join(parts)


def _largest(tested: Sequence[Comparison], verdict: str) -> str:
    """The largest significant change with its interval; points rather than ranks and cosines."""
    changed = [one for one in tested if one.verdict == verdict]
    points = [one for one in changed if one.metric.unit == "fraction"]
    if not changed:
        return ""
    largest = max(points or changed, key=lambda one: abs(one.change or 0.0))
    interval = largest.texts["interval"]
    brackets = f" [{interval}]" if interval else ""
    change = amount(largest.change or 0.0, largest.metric.unit)
    return f"{change}{brackets} on {largest.name}"


def _risen(tested: Sequence[Comparison]) -> int:
    return sum(one.verdict == "better" for one in tested)


def _fallen(tested: Sequence[Comparison]) -> int:
    return sum(one.verdict == "worse" for one in tested)
