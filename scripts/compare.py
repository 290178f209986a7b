"""Trains every strategy of a suite, one after another, and puts their numbers into one table.

    python scripts/compare.py [--suite configs/experiments/compare/cola.yaml] [--seeds 0 1 2]
                              [--only lora ft_late] [--steps N] [--out FOLDER]

Each run is a `vlmtune fit` of its own, in `FOLDER/<strategy>/seed-<seed>`, with its log beside its
report. A run whose report is there is not trained again, and one that was stopped goes on from its
last checkpoint, so that the command can be given again at any time. A run that fails does not stop
the others; the exit status is then 1.

Written are `FOLDER/compare.md`, for each strategy the mean over the seeds and in brackets each of
them, and `FOLDER/compare.json`, both with all runs of these seeds that the folder holds. Numbers
are of the weights at the end of training. Seconds per epoch leave out evaluation and the encoding
of stored features. `--steps` shortens the trainings, to see whether everything runs; such runs have
a folder of their own.

A suite is a YAML with `title`; `out`, the folder; `zero_shot`, the untrained model and the list of
`benchmarks` it is measured on, perhaps with a `store` of features; `base`, the config that all
strategies are laid over; `columns`, heading to "benchmark metric"; `rows`, strategy to its `name`
and `configs`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from vlmtune.errors import UserError
from vlmtune.metrics.value import MetricValue
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import count, number
from vlmtune.storage.files import write_text

ROOT = Path(__file__).resolve().parents[1]
SUITE = Path("configs/experiments/compare/cola.yaml")
ZERO_SHOT = "zero_shot"
MADE_OF = "made_of.json"
KEYS = {"title", "out", "zero_shot", "base", "columns", "rows"}

Run = Callable[[Sequence[str], Path], None]
"""Runs a command of vlmtune, with what it prints in a file; raises `UserError` where it fails."""


@dataclass(frozen=True)
class Suite:
    """What is compared.

    Attributes:
        title: Heading of the table.
        out: Folder of the runs.
        zero_shot: Options of `vlmtune evaluate` for the untrained model.
        base: The config that all strategies are laid over.
        columns: Heading -> (benchmark, metric).
        names: Strategy -> its name in the table.
        configs: Strategy -> its configs.
    """

    title: str
    out: Path
    zero_shot: dict[str, str]
    base: str
    columns: dict[str, tuple[str, str]]
    names: dict[str, str]
    configs: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Task:
    """One run: a strategy with a seed, or the untrained model.

    Attributes:
        row: The strategy, or `ZERO_SHOT`.
        name: What it is called in reports.
        folder: Where it leaves its report.
        words: The command, without what resumes it.
    """

    row: str
    name: str
    folder: Path
    words: tuple[str, ...]

    @property
    def report(self) -> Path:
        """The report the run leaves behind."""
        return self.folder / "report.json"

    @property
    def made_of(self) -> str:
        """What the run is made of: its command, and digests of the configs that this names."""
        paths = [Path(word) for word in self.words if word.endswith(".yaml")]
        digests = {str(path): sha256(path.read_bytes()).hexdigest() for path in paths}
        return json.dumps({"command": self.words, "configs": digests}, indent=1) + "\n"

    @property
    def begun(self) -> str | None:
        """What the run in the folder is made of; None where there is none."""
        path = self.folder / MADE_OF
        return path.read_text(encoding="utf-8") if path.is_file() else None

    @property
    def done(self) -> bool:
        """Whether this very run has left its report."""
        return self.report.is_file() and self.begun == self.made_of


def read_suite(path: Path) -> Suite:
    """Reads a suite.

    Raises:
        UserError: It cannot be read, or is not what the module says.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        unknown = sorted(KEYS.symmetric_difference(content))
        if unknown:
            raise ValueError(f"{unknown[0]} missing or unknown")
        rows: Mapping[str, Any] = content["rows"]
        columns = {title: tuple(where.split()) for title, where in content["columns"].items()}
        if not rows or not all(len(where) == 2 for where in columns.values()):
            raise ValueError("no rows, or a column that is not `benchmark metric`")
        return Suite(
            content["title"],
            Path(content["out"]),
            dict(content["zero_shot"]),
            content["base"],
            {title: (benchmark, metric) for title, (benchmark, metric) in columns.items()},
            {row: values["name"] for row, values in rows.items()},
            {row: tuple(values["configs"]) for row, values in rows.items()},
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        line = " ".join(str(error).split())
        raise UserError(
            f"expected a suite of comparisons in {path}, got {type(error).__name__}: {line}: "
            f"see {SUITE}"
        ) from error


def tasks(
    suite: Suite, out: Path, seeds: Sequence[int], only: Sequence[str], steps: int | None
) -> list[Task]:
    """Lists the runs, the untrained model first.

    Raises:
        UserError: A strategy is not in the suite.
    """
    if unknown := sorted({*only} - {ZERO_SHOT, *suite.configs}):
        raise UserError(
            f"expected strategies out of {', '.join([ZERO_SHOT, *suite.configs])}, "
            f"got {unknown[0]}: correct --only"
        )
    options = [word for key, value in suite.zero_shot.items() for word in (f"--{key}", value)]
    folder = out / ZERO_SHOT
    evaluated = ("evaluate", *options, "--name", "zero-shot", "--out", str(folder))
    found = [Task(ZERO_SHOT, "zero-shot", folder, evaluated)]
    for row, configs in suite.configs.items():
        for seed in seeds:
            folder, name = out / row / f"seed-{seed}", f"{suite.names[row]}, seed {seed}"
            words = ["fit", *(w for one in (suite.base, *configs) for w in ("--config", one))]
            words += [f"--{key}={seed}" for key in ("seed_everything", "model.seed", "data.seed")]
            words += [f"--trainer.default_root_dir={folder}"]
            words += [f"--trainer.callbacks.init_args.name={name}"]
            words += [] if steps is None else [f"--trainer.max_steps={steps}"]
            found.append(Task(row, name, folder, tuple(words)))
    return [task for task in found if not only or task.row in only]


def perform(task: Task, run: Run) -> bool:
    """Does what is left to do of a run; returns whether that was anything.

    Raises:
        UserError: The run fails, or its folder holds another one.
    """
    if task.begun not in (None, task.made_of):
        raise UserError(
            f"expected in {task.folder} a run of the same command and configs, got another "
            f"({MADE_OF}): remove the folder or choose another --out"
        )
    if task.done:
        return False
    write_text(task.folder / MADE_OF, task.made_of)
    last = task.folder / "checkpoints" / "last.ckpt"
    resumed = ("--ckpt_path", str(last)) if last.is_file() else ()
    run((*task.words, *resumed), task.folder / "log.txt")
    if not task.done:
        raise UserError(f"expected {task.report} after the run, got none: see the log beside it")
    return True


def subprocess_run(words: Sequence[str], log: Path) -> None:
    """Runs `vlmtune` in a process of its own.

    Raises:
        UserError: It fails; with the last line it printed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("a", encoding="utf-8") as file:
        command = [sys.executable, "-m", "vlmtune", *words]
        status = subprocess.run(command, stdout=file, stderr=file, env=environment).returncode  # noqa: S603
    if status != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
        raise UserError(f"expected the run to end well, got {said[-1]!r}: see {log}")


def seconds_per_epoch(report: RunReport, folder: Path) -> float | None:
    """Seconds of training over all records once; None for a model that was not trained.

    Read off what the run left: its config, and the manifests of its shards.
    """
    steps = report.provenance.config.get("steps")
    path = folder / "config.yaml"
    if not steps or not path.is_file():
        return None
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    data, records = config["data"], 0
    for shards in data["train"]:
        folder = Path(shards.get("init_args", shards)["path"])
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        records += sum(shard["records"] for shard in manifest["shards"])
    seen = steps * data["batch_size"] * config["trainer"]["accumulate_grad_batches"]
    return report.provenance.seconds * records / seen


def gathered(suite: Suite, found: Sequence[Task]) -> dict[str, Any]:
    """The numbers of all runs that are done: what `compare.json` holds.

    Raises:
        UserError: A report cannot be read, or lacks a column.
    """
    rows: dict[str, Any] = {}
    for task in found:
        if not task.done:
            continue
        report = RunReport.load(task.report)
        metrics = {title: _metric(report, where, task) for title, where in suite.columns.items()}
        name = "zero-shot" if task.row == ZERO_SHOT else suite.names[task.row]
        row = rows.setdefault(task.row, {"name": name, "runs": []})
        row["trainable_parameters"] = report.provenance.trainable_parameters
        row["runs"].append(
            {
                "seed": report.provenance.seed,
                "report": str(task.report),
                "seconds_per_epoch": seconds_per_epoch(report, task.folder),
                "values": {title: metric.value for title, metric in metrics.items()},
                "chance": {title: metric.chance for title, metric in metrics.items()},
                "units": {title: metric.unit for title, metric in metrics.items()},
            }
        )
    return {"title": suite.title, "columns": suite.columns, "rows": rows}


def _metric(report: RunReport, where: tuple[str, str], task: Task) -> MetricValue:
    results = {result.benchmark: result for result in report.results}
    try:
        return results[where[0]].metrics[where[1]]
    except KeyError as error:
        raise UserError(
            f"expected {where[1]} of {where[0]} in {task.report}, got none: correct the columns "
            "of the suite"
        ) from error


def markdown(comparison: Mapping[str, Any]) -> str:
    """The table: means over seeds, and in brackets each of them."""
    titles = list(comparison["columns"])
    lines = [f"# {comparison['title']}", ""]
    lines.append(_line(["strategy", "trained numbers", *titles, "s/epoch"]))
    lines.append(_line(["---", *["---:"] * (len(titles) + 2)]))
    runs = [run for row in comparison["rows"].values() for run in row["runs"]]
    if runs:
        chances, units = runs[0]["chance"], runs[0]["units"]
        written = ("–" if chances[t] is None else number(chances[t], units[t]) for t in titles)
        lines.append(_line(["*chance*", "", *written, ""]))
    for row in comparison["rows"].values():
        units = row["runs"][0]["units"]
        cells = [_cell([run["values"][t] for run in row["runs"]], units[t]) for t in titles]
        times = [r["seconds_per_epoch"] for r in row["runs"] if r["seconds_per_epoch"] is not None]
        time_ = f"{statistics.mean(times):.1f}" if times else "–"
        lines.append(_line([row["name"], count(row["trainable_parameters"]), *cells, time_]))
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float], unit: str) -> str:
    mean = number(statistics.mean(values), unit)
    return mean if len(values) == 1 else f"{mean} ({' / '.join(number(v, unit) for v in values)})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def compare(options: argparse.Namespace, run: Run = subprocess_run) -> int:
    """Trains what is left, writes the tables, and returns the exit status.

    Raises:
        UserError: The suite cannot be read, or a report cannot.
    """
    suite = read_suite(options.suite)
    out = options.out or (
        suite.out if options.steps is None else Path(f"{suite.out}-{options.steps}-steps")
    )
    every = tasks(suite, out, options.seeds, [], options.steps)
    found = tasks(suite, out, options.seeds, options.only, options.steps)
    start, failed = time.monotonic(), 0
    for place, task in enumerate(found, 1):
        seconds = time.monotonic() - start
        print(f"[{seconds:4.0f} s] {place} of {len(found)}: {task.name}", flush=True)
        try:
            if not perform(task, run):
                print(f"         done before, in {task.folder}", flush=True)
        except UserError as error:
            failed += 1
            print(f"compare: error: {error}", file=sys.stderr)
        comparison = gathered(suite, every)  # after each run, so that there is always a table
        write_text(out / "compare.json", json.dumps(comparison, indent=1) + "\n")
        write_text(out / "compare.md", markdown(comparison))
    print((out / "compare.md").read_text(encoding="utf-8"), end="")
    print(f"written: {out / 'compare.md'}, {out / 'compare.json'}")
    return int(failed > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, 2 for an error of the user."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="STRATEGY")
    parser.add_argument("--steps", type=int, help="shorten the trainings to so many steps")
    parser.add_argument("--out", type=Path, help="folder of the runs, in place of the suite's")
    try:
        return compare(parser.parse_args(argv))
    except UserError as error:
        print(f"compare: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
