"""`vlmtune compare`: trains every strategy of an experiment and puts the results into one table.

In: a YAML with the strategies, and seeds. Out: a run in FOLDER/STRATEGY/seed-SEED for each,
`compare.md` and `compare.csv` with the mean over seeds and each seed, and `compare.json`.
Never: a finished run again, or a run that another call is running.

The YAML has `title`, `out`, `zero_shot` (options of `vlmtune evaluate`), `base` (shared config),
`columns` (heading to "benchmark metric") and `rows` (strategy to `name` and `configs`). A config
of a row is a path, or settings that stand in the table. `product` has lists of such rows: every
choice of one from each list is a row, too. Seconds per epoch exclude evaluation and encoding.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from filelock import Timeout
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from vlmtune.cli.compare_process import run_process
from vlmtune.cli.yaml_files import read_value, read_yaml, yaml_digests
from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.report.formats import csv_text, no_formula
from vlmtune.report.markdown_table import markdown_table
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import count, number
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.files import all_or_none, check_shape, reading, write_text
from vlmtune.storage.folder import locked
from vlmtune.training.checkpoint_files import newest_checkpoint

EXAMPLE = "configs/experiments/compare/cola.yaml"
ZERO_SHOT = "zero_shot"
RECIPE = "recipe.json"
CALLBACK = "BenchmarkCallback"
FOLDER = "--trainer.default_root_dir="
NAME = f"--trainer.callbacks.{CALLBACK}.name"

Run = Callable[[Sequence[str], Path], None]
"""Runs a command of vlmtune and writes its output to a file; raises `UserError` if it fails."""


Key = Annotated[str, Field(pattern=r"^[^./\\][^/\\]*$")]
"""The key of a row, which names the folder of its runs."""
Known = dict[str, tuple[object, Path]]
"""What all runs must have in common: its value, and the folder of the first run that has it."""


class Strategy(TypedDict):
    """A row of the table: its name, what is behind each `--config`, and words of the command."""

    name: str
    configs: list[str | dict[str, Any]]
    words: NotRequired[list[str]]


@dataclass(frozen=True)
class Experiment:
    """A table of strategies; see the module."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    title: str
    out: Path
    zero_shot: dict[str, str | list[str]]
    base: str
    columns: dict[str, Annotated[str, Field(pattern=r"^\S+ \S")]]
    rows: dict[Key, Strategy] = field(default_factory=dict)
    product: list[dict[Key, Strategy]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
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
        """The command of the run without its folder, with a digest of each YAML that it names."""
        # The same words may name other settings tomorrow.
        digests = yaml_digests(self.words)
        words = _without_folder(self.words)
        text = json.dumps({"command": words, "configs": digests}, indent=1)
        return f"{text}\n"

    @property
    def begun(self) -> str | None:
        """The recipe of the run in the folder, or None."""
        path = self.folder / RECIPE
        if not path.is_file():
            return None
        text = json.dumps(begun_recipe(path), indent=1)
        return f"{text}\n"

    @property
    def done(self) -> bool:
        """Whether this very run has written its report."""
        return self.report.is_file() and self.begun == self.recipe


def _without_folder(words: Sequence[str]) -> list[str]:
    """The words of a command without those that name its folder, which may move."""
    kept = []
    names_folder = False
    for word in words:
        if not names_folder and word != "--out" and not word.startswith(FOLDER):
            kept.append(word)
        names_folder = word == "--out"
    return kept


def begun_recipe(path: Path) -> dict[str, Any]:
    """The recipe of a run that was begun, without its folder, which older recipes name."""
    with reading(path, "the recipe of a run", "remove its folder"):
        recorded = json.loads(path.read_text(encoding="utf-8"))
        return {**recorded, "command": _without_folder(recorded["command"])}


def read_experiment(path: Path) -> Experiment:
    """Reads the YAML of an experiment."""
    content = read_yaml(find_path(path) or path)
    stated = check_shape(content, Experiment, path, "a table of strategies", f"see {EXAMPLE}")
    _check_base(stated.base)
    return replace(stated, rows=_with_products(stated.rows, stated.product))


def _check_base(path: str) -> None:
    """Raises a `UserError` if no callback of the base measures the runs."""
    base = read_yaml(find_path(path) or Path(path))
    try:
        callbacks = base["trainer"]["callbacks"]
        names = [callback["class_path"].rpartition(".")[2] for callback in callbacks]
    except KeyError:
        names = []
    except TypeError:  # a path of a YAML, or a mistake that `vlmtune fit` explains
        return
    if names.count(CALLBACK) != 1:
        raise UserError(
            f"expected one {CALLBACK} in trainer.callbacks of {path}, got {names.count(CALLBACK)}: "
            "it measures each run and has its name; see docs/compare.md"
        )


def _with_products(
    stated: dict[str, Strategy], factors: Sequence[dict[str, Strategy]]
) -> dict[str, Strategy]:
    """The rows, and one for each choice of one strategy from every factor; later configs win."""
    rows = dict(stated)
    if not factors:
        return rows
    listed = [factor.items() for factor in factors]
    for choice in itertools.product(*listed):
        names = []
        configs = []
        for _, strategy in choice:
            names.append(strategy["name"])
            configs += strategy["configs"]
        row = "_".join(key for key, _ in choice)
        if row in rows:
            raise UserError(
                f"expected keys in product that make new rows, got {row!r} twice: rename one"
            )
        rows[row] = {"name": ", ".join(names), "configs": configs}
    return rows


def tasks(
    experiment: Experiment, out: Path, seeds: Sequence[int], only: Sequence[str], steps: int | None
) -> list[Job]:
    """Lists the runs, the untrained model first."""
    known = [ZERO_SHOT, *experiment.rows]
    unknown = sorted(set(only).difference(known))
    if unknown:
        raise UserError(
            f"expected strategies out of {', '.join(known)}, got {unknown[0]}: change --only"
        )
    options = []
    for key, value in experiment.zero_shot.items():
        values = value if isinstance(value, list) else [value]
        options += [f"--{key}", *values]
    folder = out / ZERO_SHOT
    evaluate = ("evaluate", *options, "--name", "zero-shot", "--out", str(folder))
    listed = [Job(ZERO_SHOT, "zero-shot", folder, evaluate)]
    for row, strategy in experiment.rows.items():
        # The base comes first, so that a strategy's own settings win.
        configs = ["--config", experiment.base]
        for config in strategy["configs"]:
            word = config if isinstance(config, str) else json.dumps(config)
            configs += ["--config", word]
        for seed in seeds:
            folder = out / row / f"seed-{seed}"
            name = f"{strategy['name']}, seed {seed}"
            words = ["fit", *configs, *strategy.get("words", ()), f"--seed_everything={seed}"]
            words.append(f"{FOLDER}{folder}")
            # `vlmtune report` shows the seeds of one name together.
            title = strategy["name"]
            if read_value(title) != title:  # YAML reads "LoRA: r=8" otherwise
                title = json.dumps(title)
            words.append(f"{NAME}={title}")
            words += _steps_words(steps)
            listed.append(Job(row, name, folder, tuple(words)))
    return [task for task in listed if not only or task.row in only]


def perform(task: Job, run: Run) -> Literal["done", "ran", "taken"]:
    """Runs what is left of a task; "taken" if another call is running it."""
    try:
        with locked(task.folder / ".compare", wait=False):
            if task.done:
                return "done"
            last = newest_checkpoint(task.folder)
            # A run that failed before its first checkpoint leaves nothing to mix with another.
            has_results = last is not None or task.report.is_file()
            if has_results and task.begun not in (None, task.recipe):
                raise UserError(
                    f"expected in {task.folder} a run of the same command and configs, got another "
                    f"({RECIPE}): remove the folder or choose another --out"
                )
            write_text(task.folder / RECIPE, task.recipe)
            resume = ("--ckpt_path", str(last)) if last is not None else ()
            run((*task.words, *resume), task.folder / "log.txt")
    except Timeout:
        return "taken"
    if not task.done:
        raise UserError(f"expected {task.report} after the run, got none: see the log next to it")
    return "ran"


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
    for task in listed:
        if not task.done:
            continue
        report = RunReport.load(task.report)
        for result in report.results:
            if result.benchmark in shown and result.items_digest:
                what = f"items and convention of {result.benchmark} in all runs"
                measured = (*result.definition, result.items_digest)
                _check_same(known, what, measured, task.folder)
        # Rows may differ in their data and frozen model, but the seeds of a row may not.
        training_data = report.provenance.config.get("training_data", ())
        digests = [shards["digest"] for shards in training_data]
        _check_same(known, f"training data in all seeds of {task.row}", digests, task.folder)
        frozen = report.provenance.fingerprint
        _check_same(known, f"frozen model in all seeds of {task.row}", frozen, task.folder)
        values: dict[str, float | None] = {}
        chance = {}
        units = {}
        for title, where in experiment.columns.items():
            metric = _metric(report, where, task.folder)
            values[title] = None if metric is None else metric.value
            if metric is not None:
                chance[title] = metric.chance
                units[title] = metric.unit
        name = task.name
        if task.row in experiment.rows:
            name = experiment.rows[task.row]["name"]
        row = rows.setdefault(task.row, {"name": name, "runs": []})
        row["trainable_parameters"] = report.provenance.trainable_parameters
        run = {
            "seed": report.provenance.seed,
            "report": str(task.report),
            "seconds_per_epoch": seconds_per_epoch(report, task.folder),
            "values": values,
            "chance": chance,
            "units": units,
        }
        row["runs"].append(run)
    return {"title": experiment.title, "columns": experiment.columns, "rows": rows}


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


def _other_points(listed: Sequence[Job], out: Path, steps: int | None) -> list[Job]:
    """The runs in the folder that earlier grids began with these configs and as many steps."""
    folders = {job.folder for job in listed}
    known = [_configs(job.words) for job in listed]
    jobs = []
    for path in sorted(out.glob(f"*/seed-*/{RECIPE}")):
        words = begun_recipe(path)["command"]
        names = [word for word in words if word.startswith(f"{NAME}=")]
        if path.parent in folders or not names or _configs(words) not in known:
            continue
        # `--steps` comes after the name; a grid's own words come before it.
        after = words[words.index(names[0]) + 1 :]
        if after == _steps_words(steps):
            name = read_value(names[0].partition("=")[2])
            jobs.append(Job(path.parent.parent.name, name, path.parent, tuple(words)))
    return jobs


def _configs(words: Sequence[str]) -> list[str]:
    """What follows each --config."""
    return [word for before, word in itertools.pairwise(words) if before == "--config"]


def _steps_words(steps: int | None) -> list[str]:
    """The words of `--steps`."""
    return [] if steps is None else [f"--trainer.max_steps={steps}"]


def table(comparison: dict[str, Any]) -> list[list[str]]:
    """The cells of the table: headings, chance, then a row for each strategy.

    A number is the mean over seeds, and in brackets each of them.
    """
    titles = list(comparison["columns"])
    rows = list(comparison["rows"].values())
    cells = [["strategy", "trainable parameters", *titles, "s/epoch"]]
    if rows:
        # Chance depends on the benchmark alone, so the first run's chance is right for all runs.
        runs = list(itertools.chain.from_iterable(row["runs"] for row in rows))
        levels = []
        for title in titles:
            # A run that lacks the number has no chance level either.
            measured = [run for run in runs if title in run["units"]]
            text = "–"
            if measured and measured[0]["chance"][title] is not None:
                text = number(measured[0]["chance"][title], measured[0]["units"][title])
            levels.append(text)
        cells.append(["chance", "", *levels, ""])
    for row in rows:
        values = [_value_cell(row["runs"], title) for title in titles]
        parameters = count(row["trainable_parameters"])
        cells.append([row["name"], parameters, *values, _seconds_cell(row["runs"])])
    return cells


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


def run(options: argparse.Namespace, start_run: Run = run_process) -> None:
    """Trains what is left and writes the tables; a failed run does not stop the rest."""
    from vlmtune.cli.compare_grid import chosen_rows, with_grid  # it needs the classes above

    stated = read_experiment(options.experiment)
    experiment = with_grid(stated, options.grid)
    steps = options.steps
    out = options.out
    if out is None:
        # A shortened or extended comparison gets another folder than the experiment itself.
        grid_suffix = "-grid" if options.grid else ""
        steps_suffix = "" if steps is None else f"-{steps}-steps"
        out = Path(f"{experiment.out}{grid_suffix}{steps_suffix}")
    only = chosen_rows(stated, options.grid, options.only)
    chosen = tasks(experiment, out, options.seeds, only, steps)
    failed = []
    start = time.monotonic()
    for position, task in enumerate(chosen, 1):
        seconds = time.monotonic() - start
        print(f"[{seconds:4.0f} s] {position} of {len(chosen)}: {task.name}")
        try:
            outcome = perform(task, start_run)
            if outcome == "ran":  # a table after each run, so that there is always one
                _write_tables(experiment, out, steps, bool(options.grid))
        except UserError as error:
            # The others go on: one diverged training must not cost a night.
            failed.append(task.name)
            print(f"failed: {error}", file=sys.stderr)
            continue
        if outcome == "taken":
            print("another call is running it")
    if _write_tables(experiment, out, steps, bool(options.grid)):
        written = [out / f"compare.{form}" for form in ("md", "csv", "json")]
        print(written[0].read_text(encoding="utf-8"), end="")
        print(f"written: {', '.join(map(str, written))}")
    if failed:
        raise UserError(
            f"expected all runs to finish, {len(failed)} of {len(chosen)} failed ({failed[0]}): "
            "see above, mend the cause and call again"
        )


def _write_tables(experiment: Experiment, out: Path, steps: int | None, is_grid: bool) -> bool:
    """Puts all finished runs of the folder into the tables, of all calls and seeds.

    Those of a grid also have the points of earlier calls, which no config lists. Without a finished
    run of these settings there is nothing to write, and it returns False.
    """
    seeds = set()
    for folder in out.glob("*/seed-*"):
        seed = folder.name.removeprefix("seed-")
        if seed.isdecimal():
            seeds.add(int(seed))
    listed = tasks(experiment, out, sorted(seeds), [], steps)
    if is_grid:
        listed += _other_points(listed, out, steps)
    # Another call may finish a run meanwhile and write the tables, too.
    with locked(out / "compare.json"), all_or_none():
        comparison = collect(experiment, listed)
        if not comparison["rows"]:
            return False  # a table of earlier runs stays
        text = json.dumps(comparison, indent=1)
        write_text(out / "compare.json", f"{text}\n")
        write_text(out / "compare.md", markdown(comparison))
        write_text(out / "compare.csv", to_csv(comparison))
    return True
