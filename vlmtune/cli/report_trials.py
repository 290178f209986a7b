"""`vlmtune report SWEEP`: the trials of a sweep in one table with plots; exports the best one.

In: the folder of a sweep. Out: report.html, trials.csv, and with --export the best trial's weights.
Never: a training.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmtune.cli.yaml_files import read_yaml
from vlmtune.config import find_path
from vlmtune.errors import counted
from vlmtune.export import save_export
from vlmtune.model import read_checkpoint
from vlmtune.model.loading import loading_call
from vlmtune.report.formats import write_formats
from vlmtune.report.html import write_report
from vlmtune.report.items_file import items_of
from vlmtune.report.run_report import RunReport
from vlmtune.report.screen import show
from vlmtune.report.trials import Trial, Trials, read_trials, trials_csv, trials_view
from vlmtune.storage.files import all_or_none, check_shape, write_text
from vlmtune.training.checkpoint_files import LAST

SHOWN = 5
"""Trials whose whole reports stand side by side below the table."""


def run(options: argparse.Namespace) -> None:
    """Writes the report of the sweep `options.runs[0]` into `options.out`."""
    (folder,) = options.runs
    trials = read_trials(folder, options.metric, metric_of_sweep(folder))
    best = []
    for trial in trials.trials[:SHOWN]:
        best.append(replace(trial, report=RunReport.load(trial.folder / "report.json")))
    runs = []
    items = {}
    shared: dict[Any, Any] = {}  # of the items of all
    for trial in best:
        name = trial.name
        runs.append(replace(trial.report, name=name))
        items[name] = items_of(trial.folder / "report.json", trial.report.results, shared)
    with all_or_none():
        page = write_report(options.out, runs, items, trials_view(trials))
        write_text(options.out / "trials.csv", trials_csv(trials))
        write_formats(runs, options.csv, options.latex, options.mteb)
    show(runs)
    _say(trials, folder)
    if options.export is not None:
        _export(best[0], options.export, options.packages)
    print(f"report: {page}")


def metric_of_sweep(folder: Path) -> str:
    """The metric in configs/sweeps/NAME.yaml of the trials in runs/sweeps/NAME; "" without one.

    Example:
        >>> metric_of_sweep(Path("runs/sweeps/mm_adapter"))
        'cola_multi_seen/accuracy'
    """
    _, below_sweeps, name = folder.absolute().as_posix().rpartition("/sweeps/")
    path = find_path(Path("configs/sweeps", f"{name}.yaml"))
    if not below_sweeps or path is None:
        return ""
    sweep = check_shape(read_yaml(path), dict[str, Any], path, "a sweep")
    metric = sweep.get("metric", {})
    check_shape(metric, dict[str, Any], path, "a metric")
    return str(metric.get("name", ""))


def _say(trials: Trials, folder: Path) -> None:
    best = trials.trials[0]
    pairs = [f"{key} {value}" for key, value in zip(trials.keys, best.values, strict=True)]
    measured = counted(len(trials.trials), "trial")
    print(f"{folder}: {measured}; the best by {trials.metric} is {best.name}")
    print(f"  {', '.join(pairs) or 'nothing varied'}")
    if trials.lacking:
        print(f"warning: without {trials.metric}: {', '.join(trials.lacking)}", file=sys.stderr)
    if trials.mixed:
        print(f"warning: {trials.mixed}", file=sys.stderr)


def _export(best: Trial, out: Path, packages: Sequence[str]) -> None:
    # Others are not of the weights that the report measured.
    checkpoint = best.folder / LAST
    model = read_checkpoint(checkpoint, packages)
    results = best.report.results
    provenance = {**model.provenance, "results": results}
    save_export(out, model.backbone, model.adapter, provenance=provenance, overwrite=False)
    print(f"{out}: {checkpoint}; load it with {loading_call(str(out), model)}")
