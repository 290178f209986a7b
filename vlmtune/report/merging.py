"""Reports of one model: what `evaluate` and `probe` measured of it becomes one run.

In: runs. Out: the same runs, those of equal name and weights merged. Never: a changed number.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from vlmtune.report.run_report import Curve, RunReport


def same_model(runs: Sequence[RunReport]) -> list[list[int]]:
    """Returns the positions of the runs, those of one model together.

    Two runs are of one model if their names, their weights and their backbones are equal, and if
    they measured other benchmarks.
    """
    groups: list[list[int]] = []
    for i, run in enumerate(runs):
        for group in groups:
            others = [runs[k] for k in group]
            same = all(_weights(run) == _weights(other) for other in others)
            if same and not any(_names(run) & _names(other) for other in others):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def merged(runs: Sequence[RunReport]) -> RunReport:
    """Returns runs of one model as one, with the provenance of the first evaluation among them."""
    if len(runs) == 1:
        return runs[0]
    first = min(runs, key=lambda run: "benchmarks" not in run.provenance.config)
    # Of keys that several have, the value of the first evaluation stays.
    config: dict[str, Any] = {}
    curves: dict[str, Curve] = {}
    for run in runs:
        config |= run.provenance.config
        curves |= run.curves
    return replace(
        first,
        provenance=replace(first.provenance, config={**config, **first.provenance.config}),
        results=tuple(chain.from_iterable(run.results for run in runs)),
        curves=curves,
        not_run=tuple(chain.from_iterable(run.not_run for run in runs)),
    )


def _weights(run: RunReport) -> tuple[object, ...]:
    """What two runs of one model have in common; a run that does not say fits none but itself."""
    digest = run.provenance.config.get("digest", id(run))
    return run.name, run.text_only, run.provenance.fingerprint, digest


def _names(run: RunReport) -> set[str]:
    return {result.benchmark for result in run.results} | {name for name, _ in run.not_run}
