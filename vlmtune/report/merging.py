"""Reports of one model: what `evaluate` and `probe` measured of it becomes one run.

In: runs. Out: the same runs, those of equal name and weights merged. Never: a changed number.
"""

from collections.abc import Sequence
from dataclasses import replace

from vlmtune.report.run_report import RunReport


def same_model(runs: Sequence[RunReport]) -> list[list[int]]:
    """Returns the positions of the runs, those of one model together.

    Two runs are of one model if their names, their weights and their backbones are equal, and if
    they measured other benchmarks.
    """
    groups: list[list[int]] = []
    for i, run in enumerate(runs):
        group = next((x for x in groups if _fits(run, [runs[k] for k in x])), None)
        if group is None:
            groups.append([i])
        else:
            group.append(i)
    return groups


def merged(runs: Sequence[RunReport]) -> RunReport:
    """Returns runs of one model as one, with the provenance of the first evaluation among them."""
    if len(runs) == 1:
        return runs[0]
    first = min(runs, key=lambda run: "benchmarks" not in run.provenance.config)
    config = {key: value for run in runs for key, value in run.provenance.config.items()}
    return replace(
        first,
        provenance=replace(first.provenance, config={**config, **first.provenance.config}),
        results=tuple(result for run in runs for result in run.results),
        curves={name: curve for run in runs for name, curve in run.curves.items()},
        not_run=tuple(pair for run in runs for pair in run.not_run),
    )


def _fits(run: RunReport, others: Sequence[RunReport]) -> bool:
    return all(_weights(run) == _weights(x) and not _names(run) & _names(x) for x in others)


def _weights(run: RunReport) -> tuple[object, ...]:
    """What two runs of one model have in common; a run that does not say fits none but itself."""
    digest = run.provenance.config.get("digest", id(run))
    return run.name, run.text_only, run.provenance.fingerprint, digest


def _names(run: RunReport) -> set[str]:
    return {result.benchmark for result in run.results} | {name for name, _ in run.not_run}
