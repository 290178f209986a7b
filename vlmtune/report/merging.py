"""Reports of one model: what `evaluate` and `probe` measured of it becomes one run.

In: runs. Out: the same runs, those of equal name and weights merged. Never: a changed number.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmtune.report.run_report import Curve, RunReport
from vlmtune.results.result import Result


def same_model(runs: Sequence[RunReport]) -> list[list[int]]:
    """Returns the positions of the runs, those of one model together.

    Two runs are of one model if their names, their weights and their backbones are equal, and if
    they measured other benchmarks.
    """
    groups: list[list[int]] = []
    for i, run in enumerate(runs):
        for group in groups:
            if all(_fits(run, runs[k]) for k in group):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _fits(run: RunReport, other: RunReport) -> bool:
    same_weights = _weights(run) == _weights(other)
    return same_weights and _names(run).isdisjoint(_names(other))


def merged(runs: Sequence[RunReport]) -> RunReport:
    """Returns runs of one model as one, with the provenance of the first evaluation among them."""
    if len(runs) == 1:
        return runs[0]
    first = min(runs, key=lambda run: "benchmarks" not in run.provenance.config)
    config: dict[str, Any] = {}
    benchmarks: dict[str, Any] = {}
    curves: dict[str, Curve] = {}
    results: list[Result] = []
    not_run: list[tuple[str, str]] = []
    for run in runs:
        config |= run.provenance.config
        benchmarks |= run.provenance.config.get("benchmarks", {})
        curves |= run.curves
        results += run.results
        not_run += run.not_run
    # Of keys that several have, the value of the first evaluation stays.
    config |= first.provenance.config
    if "benchmarks" in config:
        config["benchmarks"] = benchmarks  # each evaluation has its own
    return replace(
        first,
        provenance=replace(first.provenance, config=config),
        results=tuple(results),
        curves=curves,
        not_run=tuple(not_run),
    )


def _weights(run: RunReport) -> tuple[object, ...]:
    """What two runs of one model have in common; a run that does not say fits none but itself."""
    # A run without a digest gets a value that no other run has.
    digest = run.provenance.config.get("digest", id(run))
    return run.name, run.text_only, run.provenance.fingerprint, digest


def _names(run: RunReport) -> set[str]:
    measured = {result.benchmark for result in run.results}
    return measured.union(name for name, _ in run.not_run)
