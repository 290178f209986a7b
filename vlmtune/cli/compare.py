"""Trains every strategy of a suite, one after another, and puts their numbers into one table.

    python scripts/compare.py [--suite configs/experiments/compare/cola.yaml] [--seeds 0 1 2]
                              [--only lora ft_late] [--steps N] [--out FOLDER]

Each run is a `vlmtune fit` in `FOLDER/<strategy>/seed-<seed>`. Call the script again at any time:
finished runs are not repeated, stopped ones resume. Goes out: `FOLDER/compare.md`, the mean over
seeds and each seed, and `FOLDER/compare.json`. Seconds per epoch exclude evaluation and encoding.
A suite is a YAML with `title`, `out`, `zero_shot` (options of `vlmtune evaluate`), `base` (shared
config), `columns` (heading to "benchmark metric"), `rows` (strategy to `name` and `configs`).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
RECIPE = "recipe.json"
KEYS = {"title", "out", ZERO_SHOT, "base", "columns", "rows"}

Run = Callable[[Sequence[str], Path], None]
"""Runs a command of vlmtune and writes its output to a file; raises `UserError` if it fails."""


@dataclass(frozen=True)
class Suite:
    """A comparison; see the module."""

    title: str
    out: Path
    zero_shot: dict[str, str]
    base: str
    columns: dict[str, tuple[str, str]]
    names: dict[str, str]
    configs: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Task:
    """One run: a strategy (or `ZERO_SHOT`) with a seed, its folder, and its command in words."""

    row: str
    name: str
    folder: Path
    words: tuple[str, ...]

    @property
    def report(self) -> Path:
        """The report that the run writes."""
        return self.folder / "report.json"

    @property
    def recipe(self) -> str:
        """The command of the run, with a digest of each config it names."""
        paths = [Path(word) for word in self.words if word.endswith(".yaml")]
        digests = {str(path): sha256(path.read_bytes()).hexdigest() for path in paths}
        return json.dumps({"command": self.words, "configs": digests}, indent=1) + "\n"

    @property
    def begun(self) -> str | None:
        """The recipe of the run in the folder, or None."""
        path = self.folder / RECIPE
        return path.read_text(encoding="utf-8") if path.is_file() else None

    @property
    def done(self) -> bool:
        """Whether this very run has written its report."""
        return self.report.is_file() and self.begun == self.recipe


def read_suite(path: Path) -> Suite:
    """Reads a suite."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if unknown := sorted(KEYS.symmetric_difference(content)):
            raise ValueError(f"{unknown[0]} missing or unknown")
        columns = {title: tuple(names.split()) for title, names in content["columns"].items()}
        if any(len(names) != 2 for names in columns.values()):
            raise ValueError("a column that is not `benchmark metric`")
        return Suite(
            content["title"], Path(content["out"]), dict(content[ZERO_SHOT]), content["base"],
            {title: (benchmark, metric) for title, (benchmark, metric) in columns.items()},
            {row: values["name"] for row, values in content["rows"].items()},
            {row: tuple(values["configs"]) for row, values in content["rows"].items()},
        )  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        line = " ".join(str(error).split())
        raise UserError(
            f"expected a suite of comparisons in {path}, got {type(error).__name__}: {line}: "
            f"see {SUITE}"
        ) from error


def tasks(
    suite: Suite, out: Path, seeds: Sequence[int], only: Sequence[str], steps: int | None
) -> list[Task]:
    """Lists the runs, the untrained model first."""
    if unknown := sorted({*only} - {ZERO_SHOT, *suite.configs}):
        raise UserError(
            f"expected strategies out of {', '.join([ZERO_SHOT, *suite.configs])}, "
            f"got {unknown[0]}: correct --only"
        )
    options = [word for key, value in suite.zero_shot.items() for word in (f"--{key}", value)]
    folder = out / ZERO_SHOT
    evaluate = ("evaluate", *options, "--name", "zero-shot", "--out", str(folder))
    listed = [Task(ZERO_SHOT, "zero-shot", folder, evaluate)]
    for row, configs in suite.configs.items():
        for seed in seeds:
            folder, name = out / row / f"seed-{seed}", f"{suite.names[row]}, seed {seed}"
            words = ["fit", *(w for one in (suite.base, *configs) for w in ("--config", one))]
            words += [f"--{key}={seed}" for key in ("seed_everything", "model.seed", "data.seed")]
            words += [f"--trainer.default_root_dir={folder}"]
            words += [f"--trainer.callbacks.init_args.name={name}"]
            words += [] if steps is None else [f"--trainer.max_steps={steps}"]
            listed.append(Task(row, name, folder, tuple(words)))
    return [task for task in listed if not only or task.row in only]


def perform(task: Task, run: Run) -> None:
    """Runs what is left of a task."""
    if task.begun not in (None, task.recipe):
        raise UserError(
            f"expected in {task.folder} a run of the same command and configs, got another "
            f"({RECIPE}): remove the folder or choose another --out"
        )
    if task.done:
        return
    write_text(task.folder / RECIPE, task.recipe)
    last = task.folder / "checkpoints" / "last.ckpt"
    resume = ("--ckpt_path", str(last)) if last.is_file() else ()
    run((*task.words, *resume), task.folder / "log.txt")
    if not task.done:
        raise UserError(f"expected {task.report} after the run, got none: see the log beside it")


def run_process(words: Sequence[str], log: Path) -> None:
    """Runs `vlmtune` in a process of its own; an error has the last line it printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("a", encoding="utf-8") as file:
        command = [sys.executable, "-m", "vlmtune", *words]
        status = subprocess.run(command, stdout=file, stderr=file, env=environment).returncode  # noqa: S603
    if status != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UserError(
            f"expected the run to end well, got {(lines or ['nothing'])[-1]!r}: see {log}"
        )


def seconds_per_epoch(report: RunReport, folder: Path) -> float | None:
    """Seconds of training over all records once; None for a model that was not trained."""
    steps, path = report.provenance.config.get("steps"), folder / "config.yaml"
    if not steps or not path.is_file():
        return None
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    data, records = config["data"], 0
    for shards in data["train"]:
        manifest = Path(shards.get("init_args", shards)["path"]) / "manifest.json"
        content = json.loads(manifest.read_text(encoding="utf-8"))
        records += sum(shard["records"] for shard in content["shards"])
    seen = steps * data["batch_size"] * config["trainer"]["accumulate_grad_batches"]
    return report.provenance.seconds * records / seen


def collect(suite: Suite, listed: Sequence[Task]) -> dict[str, Any]:
    """The numbers of all finished runs: the content of `compare.json`."""
    rows: dict[str, Any] = {}
    for task in listed:
        if not task.done:
            continue
        report = RunReport.load(task.report)
        metrics = {title: _metric(report, where, task) for title, where in suite.columns.items()}
        name = suite.names.get(task.row, "zero-shot")
        row = rows.setdefault(task.row, {"name": name, "runs": []})
        row["trainable_parameters"] = report.provenance.trainable_parameters
        row["runs"].append({
            "seed": report.provenance.seed, "report": str(task.report),
            "seconds_per_epoch": seconds_per_epoch(report, task.folder),
            "values": {title: metric.value for title, metric in metrics.items()},
            "chance": {title: metric.chance for title, metric in metrics.items()},
            "units": {title: metric.unit for title, metric in metrics.items()},
        })  # fmt: skip
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


def markdown(comparison: dict[str, Any]) -> str:
    """The table: means over seeds, and in brackets each of them."""
    titles, rows = list(comparison["columns"]), list(comparison["rows"].values())
    cells = [["strategy", "trainable parameters", *titles, "s/epoch"]]
    cells.append(["---", *["---:"] * (len(titles) + 2)])
    for run in [run for row in rows for run in row["runs"]][:1]:
        chances = [(run["chance"][title], run["units"][title]) for title in titles]
        written = ("–" if chance is None else number(chance, unit) for chance, unit in chances)
        cells.append(["*chance*", "", *written, ""])
    for row in rows:
        runs, units = row["runs"], row["runs"][0]["units"]
        values = [_cell([run["values"][title] for run in runs], units[title]) for title in titles]
        times = [r["seconds_per_epoch"] for r in runs if r["seconds_per_epoch"] is not None]
        seconds = f"{statistics.mean(times):.1f}" if times else "–"
        cells.append([row["name"], count(row["trainable_parameters"]), *values, seconds])
    lines = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([f"# {comparison['title']}", "", *lines]) + "\n"


def _cell(values: Sequence[float], unit: str) -> str:
    mean = number(statistics.mean(values), unit)
    return mean if len(values) == 1 else f"{mean} ({' / '.join(number(v, unit) for v in values)})"


def compare(options: argparse.Namespace, run: Run = run_process) -> int:
    """Trains what is left, writes the tables, and returns the exit status."""
    suite, steps = read_suite(options.suite), options.steps
    out = options.out or (suite.out if steps is None else Path(f"{suite.out}-{steps}-steps"))
    every = tasks(suite, out, options.seeds, [], steps)
    chosen = tasks(suite, out, options.seeds, options.only, steps)
    start, failed = time.monotonic(), False
    for position, task in enumerate(chosen, 1):
        seconds = time.monotonic() - start
        print(f"[{seconds:4.0f} s] {position} of {len(chosen)}: {task.name}", flush=True)
        try:
            perform(task, run)
        except UserError as error:
            failed = True
            print(f"compare: error: {error}", file=sys.stderr)
        comparison = collect(suite, every)  # after each run, so that there is always a table
        write_text(out / "compare.json", json.dumps(comparison, indent=1) + "\n")
        write_text(out / "compare.md", markdown(comparison))
    print((out / "compare.md").read_text(encoding="utf-8"), end="")
    print(f"written: {out / 'compare.md'}, {out / 'compare.json'}")
    return int(failed)


def parser() -> argparse.ArgumentParser:
    """The options."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--suite", type=Path, default=SUITE)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--only", nargs="+", default=[], metavar="STRATEGY")
    arguments.add_argument("--steps", type=int, help="shorten the trainings to so many steps")
    arguments.add_argument("--out", type=Path, help="folder of the runs, in place of the suite's")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status, 2 for an error of the user."""
    try:
        return compare(parser().parse_args(argv))
    except UserError as error:
        print(f"compare: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
