"""The table of `vlmtune compare`, from the reports of finished runs.

In: an experiment and its jobs. Out: the content of `compare.json`, `compare.md` and `compare.csv`,
with the mean over seeds and each seed. Never: a mean over runs of different data or models.

Seconds per epoch exclude evaluation and encoding.
"""

import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmtune.cli.compare_jobs import Experiment, Job
from vlmtune.cli.yaml_files import read_yaml
from vlmtune.errors import UserError
from vlmtune.report.formats import csv_text, no_formula
from vlmtune.report.markdown_table import markdown_table
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import count, number
from vlmtune.results.metric_value import MetricValue

Known = dict[str, tuple[object, Path]]
"""What all runs must have in common: its value, and the folder of the first run that has it."""


def seconds_per_epoch(report: RunReport, folder: Path) -> float | None:
    """Seconds of training over all records once; None for a model that was not trained."""
    steps = report.provenance.config.get("steps")
    path = folder / "config.yaml"
    if not steps or not path.is_file():
        return None
    config = read_yaml(path)
    training_data = report.provenance.config.get("training_data", ())
    records = sum(shards["records"] for shards in training_data)
    # Accumulated batches of all ranks make one step.
    records_a_step = config["data"]["batch_size"] * config["trainer"]["accumulate_grad_batches"]
    seen = steps * records_a_step * report.provenance.config.get("ranks", 1)
    return report.provenance.seconds * records / seen


def collect(experiment: Experiment, listed: Sequence[Job]) -> dict[str, Any]:
    """The numbers of all finished runs: the content of `compare.json`."""
    rows: dict[str, Any] = {}
    shown = {where.split(" ", 1)[0] for where in experiment.columns.values()}
    known: Known = {}
    for job in listed:
        if not job.done:
            continue
        report = RunReport.load(job.report)
        for result in report.results:
            if result.benchmark in shown and result.items_digest:
                what = f"items and convention of {result.benchmark} in all runs"
                measured = (*result.definition, result.items_digest)
                _check_same(known, what, measured, job.folder)
        # Rows may differ in their data and frozen model, but the seeds of a row may not.
        training_data = report.provenance.config.get("training_data", ())
        digests = [shards["digest"] for shards in training_data]
        _check_same(known, f"training data in all seeds of {job.row}", digests, job.folder)
        frozen = report.provenance.fingerprint
        _check_same(known, f"frozen model in all seeds of {job.row}", frozen, job.folder)
        name = job.name
        if job.row in experiment.rows:
            name = experiment.rows[job.row]["name"]
        row = rows.setdefault(job.row, {"name": name, "runs": []})
        row["trainable_parameters"] = report.provenance.trainable_parameters
        row["runs"].append(_run(job, report, experiment.columns))
    return {"title": experiment.title, "columns": experiment.columns, "rows": rows}


def _run(job: Job, report: RunReport, columns: Mapping[str, str]) -> dict[str, Any]:
    """The numbers of one run."""
    values: dict[str, float | None] = {}
    chance = {}
    units = {}
    for title, where in columns.items():
        metric = _metric(report, where, job.folder)
        if metric is None:
            values[title] = None
            continue
        values[title] = metric.value
        chance[title] = metric.chance
        units[title] = metric.unit
    return {
        "seed": report.provenance.seed,
        "report": str(job.report),
        "seconds_per_epoch": seconds_per_epoch(report, job.folder),
        "values": values,
        "chance": chance,
        "units": units,
    }


def _metric(report: RunReport, where: str, folder: Path) -> MetricValue | None:
    """The metric of a column; None, with a line, if the run could not measure its benchmark."""
    benchmark, name = where.split(" ", 1)
    reasons = dict(report.not_run)
    if benchmark in reasons:
        print(f"{folder}: {benchmark} not run: {reasons[benchmark]}", file=sys.stderr)
        return None
    return report.metric(benchmark, name)


def _check_same(known: Known, what: str, value: object, folder: Path) -> None:
    """Raises a `UserError` if a run before this one had another value, which `known` keeps."""
    expected, first = known.setdefault(what, (value, folder))
    if value != expected:
        raise UserError(
            f"expected the same {what}, got others in {folder} than in {first}: remove the folder "
            "of the older run and call again"
        )


def table(comparison: dict[str, Any]) -> list[list[str]]:
    """The cells of the table: headings, chance, then a row for each strategy.

    A number is the mean over seeds, and in brackets each of them.
    """
    titles = list(comparison["columns"])
    rows = list(comparison["rows"].values())
    cells = [["strategy", "trainable parameters", *titles, "s/epoch"]]
    if rows:
        runs = list(itertools.chain.from_iterable(row["runs"] for row in rows))
        levels = [_chance_cell(runs, title) for title in titles]
        cells.append(["chance", "", *levels, ""])
    for row in rows:
        values = [_value_cell(row["runs"], title) for title in titles]
        parameters = count(row["trainable_parameters"])
        cells.append([row["name"], parameters, *values, _seconds_cell(row["runs"])])
    return cells


def _chance_cell(runs: Sequence[dict[str, Any]], title: str) -> str:
    for run in runs:
        # Chance depends on the benchmark alone; a run that lacks the number has no chance either.
        if title in run["units"]:
            chance = run["chance"][title]
            return "–" if chance is None else number(chance, run["units"][title])
    return "–"


def _value_cell(runs: Sequence[dict[str, Any]], title: str) -> str:
    of_seeds = [run["values"][title] for run in runs]
    if None in of_seeds:
        return "–"  # a mean over fewer seeds is another number
    unit = runs[0]["units"][title]
    mean = number(statistics.mean(of_seeds), unit)
    if len(of_seeds) == 1:
        return mean
    listed = " / ".join(number(value, unit) for value in of_seeds)
    return f"{mean} ({listed})"


def _seconds_cell(runs: Sequence[dict[str, Any]]) -> str:
    times = []
    for run in runs:
        seconds = run["seconds_per_epoch"]
        if seconds is not None:
            times.append(seconds)
    return f"{statistics.mean(times):.1f}" if times else "–"


def markdown(comparison: dict[str, Any]) -> str:
    """The table of `compare.md`."""
    heads, *rows = table(comparison)
    lines = [f"# {comparison['title']}", "", *markdown_table(heads, rows), ""]
    return "\n".join(lines)


def to_csv(comparison: dict[str, Any]) -> str:
    """The same table as `compare.csv`, which the documentation shows."""
    # Numbers may be negative, names are strangers'.
    heads, *rows = table(comparison)
    named = [[no_formula(name), *cells] for name, *cells in rows]
    return csv_text([list(map(no_formula, heads)), *named])
