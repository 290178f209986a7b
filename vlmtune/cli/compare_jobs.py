"""What `vlmtune compare` runs: the strategies of an experiment, each with each seed.

In: a YAML with the strategies, and seeds. Out: a job for each, with its command and its folder.
Never: a run.

The YAML has `title`, `out`, `zero_shot` (options of `vlmtune evaluate`), `base` (shared config),
`columns` (heading to "benchmark metric") and `rows` (strategy to `name` and `configs`). A config
of a row is a path, or settings that stand in the table. `product` has lists of such rows: every
choice of one from each list is a row, too.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from vlmtune.cli.yaml_files import read_value, read_yaml, yaml_digests
from vlmtune.config import find_path
from vlmtune.data.schema import MANIFEST
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.report.run_report import RunReport
from vlmtune.storage.files import check_shape, reading

EXAMPLE = "configs/experiments/compare/cola.yaml"
ZERO_SHOT = "zero_shot"
RECIPE = "recipe.json"
CALLBACK = "BenchmarkCallback"
FOLDER = "--trainer.default_root_dir="
NAME = f"--trainer.callbacks.{CALLBACK}.name"

Key = Annotated[str, Field(pattern=r"^[^./\\][^/\\]*$")]
"""The key of a row, which names the folder of its runs."""
Value = bool | int | float | str
"""What an option of `vlmtune evaluate` may be; true for one that takes no value."""


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
    zero_shot: dict[str, Value | list[Value]]
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
        command = _without_folder(self.words)
        text = json.dumps({"command": command, "configs": digests}, indent=1)
        return f"{text}\n"

    @property
    def begun(self) -> str | None:
        """The recipe of the run in the folder, or None."""
        path = self.folder / RECIPE
        if not path.is_file():
            return None
        return path.read_text(encoding="utf-8", errors="replace")

    @property
    def done(self) -> bool:
        """Whether this very run has written its report, and its data are still the same."""
        return self.report.is_file() and self.begun == self.recipe and self.rebuilt is None

    @property
    def rebuilt(self) -> str | None:
        """The first folder that has other records than the finished run was trained on, or None."""
        if not self.report.is_file():
            return None
        origin = RunReport.load(self.report).provenance
        trained_on = origin.config.get("training_data", [])
        folders = origin.data.split(", ")
        if len(folders) != len(trained_on):  # a folder has a comma in its name
            return None
        for folder, facts in zip(folders, trained_on, strict=True):
            # Data that are gone or on a server are not compared.
            is_here = (Path(folder).expanduser() / MANIFEST).is_file()
            if is_here and ShardSet(folder).digest() != facts["digest"]:
                return folder
        return None


def _without_folder(words: Sequence[str]) -> list[str]:
    """The words of a command without those that name its folder, which may move."""
    kept = []
    names_folder = False
    for word in words:
        if not names_folder and word != "--out" and not word.startswith(FOLDER):
            kept.append(word)
        names_folder = word == "--out"
    return kept


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


def list_jobs(
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
        if value is not False:
            options.append(f"--{key}")
        options += [str(one) for one in values if not isinstance(one, bool)]
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
    return [job for job in listed if not only or job.row in only]


def other_points(listed: Sequence[Job], out: Path, steps: int | None) -> list[Job]:
    """The runs in the folder that earlier grids began with these configs and as many steps."""
    folders = {job.folder for job in listed}
    known = [_configs(job.words) for job in listed]
    jobs = []
    recipes = list(out.glob(f"*/seed-*/{RECIPE}"))
    # seed-10 comes after seed-2.
    recipes.sort(key=lambda path: (len(path.parent.name), path))
    for path in recipes:
        folder = path.parent
        with reading(path, "the recipe of a run", "remove its folder"):
            words = json.loads(path.read_text(encoding="utf-8"))["command"]
        names = [word for word in words if word.startswith(f"{NAME}=")]
        if folder in folders or not names or _configs(words) not in known:
            continue
        # `--steps` comes after the name; a grid's own words come before it.
        after = words[words.index(names[0]) + 1 :]
        if after == _steps_words(steps):
            name = read_value(names[0].removeprefix(f"{NAME}="))
            jobs.append(Job(folder.parent.name, name, folder, tuple(words)))
    return jobs


def _configs(words: Sequence[str]) -> list[str]:
    """What follows each --config."""
    return [word for before, word in itertools.pairwise(words) if before == "--config"]


def _steps_words(steps: int | None) -> list[str]:
    """The words of `--steps`."""
    return [] if steps is None else [f"--trainer.max_steps={steps}"]
