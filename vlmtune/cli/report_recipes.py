"""Runs of one name in a report: the seeds of a recipe are one run, others get names.

In: runs and their files. Out: runs of different names, and warnings of what seeds differ in.
Never: a mean over runs of one seed.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmtune.config import differences
from vlmtune.report.run_report import RunReport, distinct_folder
from vlmtune.report.seeds import over_seeds

# Keys of a config that may differ between the seeds of a recipe.
SEEDS = re.compile(r"seed|default_root_dir|ckpt_path|\.config\b|logger")


def by_recipe(runs: Sequence[RunReport], files: Sequence[Path]) -> list[RunReport]:
    """The runs in order; those of one name and different seeds together.

    Other runs of one name are called by their folders.
    """
    runs_of: dict[str, list[RunReport]] = {}
    files_of: dict[str, list[Path]] = {}
    for run, file in zip(runs, files, strict=True):
        runs_of.setdefault(run.name, []).append(run)
        files_of.setdefault(run.name, []).append(file)
    out: list[RunReport] = []
    done: set[str] = set()
    for run, file in zip(runs, files, strict=True):
        same = runs_of[run.name]
        if len(same) == 1:
            out.append(run)
        elif not _is_recipe(same):
            folder = distinct_folder(file, files_of[run.name])
            out.append(replace(run, name=folder))
        elif run.name not in done:
            done.add(run.name)
            _warn_of_differences(same)
            out.append(over_seeds(run.name, same))
    return out


def _is_recipe(runs: Sequence[RunReport]) -> bool:
    """Whether the runs are trainings that have different seeds."""
    # Two runs of one seed, or a run without one, do not repeat a training.
    seeds = {run.provenance.seed for run in runs if not run.text_only}
    return len(seeds) == len(runs) and None not in seeds


def _warn_of_differences(runs: Sequence[RunReport]) -> None:
    """Says what differs between the configs of a recipe besides seeds and folders."""
    trainings = list(map(_training, runs))
    first, *others = [training.get("fit", {}) for training in trainings]
    frozen = {run.provenance.fingerprint for run in runs}
    data = {repr(training.get("training_data")) for training in trainings}
    for count, what in ((len(frozen), "frozen models"), (len(data), "sets of training data")):
        if count > 1:
            line = f"the runs called {runs[0].name!r} have {count} {what}"
            print(f"vlmtune: warning: {line}", file=sys.stderr)
    for other in others:
        lines = differences(first, other, "fit", "another seed") if first and other else []
        changed = [line for line in lines if not SEEDS.search(line.partition(" ")[0])]
        if changed:
            print(
                f"vlmtune: warning: the runs called {runs[0].name!r} differ in more than seeds: "
                f"{'; '.join(changed[:3])}",
                file=sys.stderr,
            )
            return


def _training(run: RunReport) -> dict[str, Any]:
    """What is recorded of the training of a run, or of the model that a run evaluated."""
    config = run.provenance.config
    trained = config.get("training")
    # An evaluation copies it from a checkpoint, where it may have any type.
    inner = trained.get("config") if isinstance(trained, dict) else None
    return inner if isinstance(inner, dict) else config
