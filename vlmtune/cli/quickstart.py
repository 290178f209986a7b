"""`vlmtune quickstart`: builds a world, trains on it, exports a model and writes reports, on a CPU.

In: a folder and a seed. Out: that folder. Never: work of its own; each step is a command.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vlmtune.cli.compare_process import check_ended
from vlmtune.cli.explain import explain
from vlmtune.cli.main import plain_log, run_command
from vlmtune.cli.yaml_files import read_yaml
from vlmtune.config import find_path
from vlmtune.training.checkpoint_files import LAST, newest_checkpoint

CONFIGS = "configs/experiments/quickstart"
OUT = "runs/quickstart"  # the folder that the configs name
CLIP = "checkpoints/scenes-clip"  # comes with vlmtune
CAPTIONS = ("a red cube and a blue sphere", "a blue cube and a red sphere")
RUN_SIZES = {"max_steps": 2, "every_n_train_steps": 2, "batch_size": 8}
SIZES: Mapping[str, Mapping[str, Mapping[str, int | float]]] = {  # size -> config -> other values
    "tiny": {
        "world": {
            "train": 24,
            "val": 4,
            "test": 30,
            "multi": 4,
            "held_out": 4,
            "ar4t_train": 8,
            "ar4t_test": 4,
            "benchmarks": 2,
            "spar_repeats": 1,
        },
        "mm_adapter": RUN_SIZES,
        "grounded_words": RUN_SIZES,
    },
    "small": {},
    "full": {
        "world": {"train": 12000, "ar4t_train": 6000, "long_foils": 2, "synonyms": True},
        "grounded_words": {"max_steps": 4000},
    },
}
SHARDS = {
    "queries": "cola",
    "relations": "cola",
    "ar4t": "ar4t",
    "captions": "coco",
    "foils": "table",
    "grammar": "table",
}
SHARED = ("queries", "relations")  # written alongside the others

Step = tuple[str, list[Any]]


class Plan(NamedTuple):
    """All steps: first `prepare`, then `recipe` alongside `mixture`, then `compare`."""

    prepare: list[Step]
    recipe: list[Step]
    mixture: list[Step]
    compare: list[Step]


def run(options: argparse.Namespace) -> None:
    """Runs all steps, each behind a line with the seconds since the start.

    World, shards and features in `options.out` are reused. A training resumes from its last
    checkpoint, or is only measured if it is complete. Each process computes with one thread, so
    results do not depend on the number of cores; on two cores or more, the frozen CLIP and the
    paper's recipe run alongside the mixture, whose training waits for their shards.
    """
    start = time.monotonic()
    configs = write_configs(options.out, options.size)
    plan = steps(options.out, configs, options.seed)
    execute(plan.prepare, start)
    if cores() > 1:
        with beside(plan.recipe, start, options.out / "recipe.log"):
            execute(plan.mixture, start)
    else:
        execute([*plan.recipe, *plan.mixture], start)
    execute(plan.compare, start)
    announce(f"done: open {options.out / 'report/report.html'}", start)


def execute(lane: Sequence[Step], start: float) -> None:
    """Runs steps one after another, each with one thread."""
    torch = importlib.import_module("torch")  # slow to import; --help does not need it
    for title, arguments in lane:
        torch.set_num_threads(1)
        announce(title, start)
        run_command([str(argument) for argument in arguments])


@contextlib.contextmanager
def beside(lane: Sequence[Step], start: float, log: Path) -> Iterator[None]:
    """Runs steps in a second process, with their output in a file, while the block runs."""
    # Not forked: torch's threads of this process would hang in a fork.
    spawning = multiprocessing.get_context("spawn")
    process = spawning.Process(target=_logged, args=(lane, start, log))
    announce(f"in a second process, with its output in {log}:", start)
    for title, _ in lane:
        print(f"         {title}")
    process.start()
    try:
        yield
        process.join()
    finally:
        # If the block failed, nobody waits for the process.
        process.terminate()
        process.join()
    check_ended(process.exitcode, log)


def _logged(lane: Sequence[Step], start: float, log: Path) -> None:
    """Runs steps with their output in a file."""
    with log.open("w", encoding="utf-8") as file:
        # Libraries that write to the descriptors themselves write into the file, too.
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            with plain_log():
                execute(lane, start)
        except Exception as error:
            print(explain(error), file=sys.stderr, flush=True)
            raise SystemExit(2) from error


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def announce(text: str, start: float) -> None:
    """Prints a line with the seconds since the start."""
    seconds = time.monotonic() - start
    print(f"[{seconds:4.0f} s] {text}", flush=True)


def write_configs(out: Path, size: str) -> Path:
    """Copies the configs to `out/configs`, with `out` for `runs/quickstart`."""
    source = find_path(CONFIGS)
    assert source is not None, "configs come with vlmtune"
    # The copies lie in another folder, where relative paths of plug-ins lead nowhere.
    plugins = source.parents[1] / "plugins"
    replaced = {OUT: str(out), "../../plugins": str(plugins)}
    folder = out / "configs"
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.yaml"):
        content = read_yaml(path)
        if size == "full" and path.stem == "benchmarks":
            content = [*content, *read_yaml(path.with_name("suite.yaml"))]
        sizes = SIZES[size].get(path.stem, {})
        content = _changed(content, replaced, sizes)
        text = yaml.safe_dump(content, sort_keys=False)
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


def steps(out: Path, configs: Path, seed: int) -> Plan:
    """The title and the command line of each step; each seed has a separate folder of runs."""
    # Each folder is the input of a later step.
    export = out / "export"
    frozen = out / "zero-shot"
    recipe = out / f"seed-{seed}/mm-adapter"
    mixture = out / f"seed-{seed}/grounded-words"
    benchmarks = ["--benchmarks", configs / "benchmarks.yaml", "--store", out / "features"]
    names = ["--name", "CLIP, zero-shot", "--text-only", out / "queries", "--out", frozen]
    checkpoint = [mixture / LAST, "--report", mixture]
    texts = ["--text", CAPTIONS[0], "--text", CAPTIONS[1]]
    shared: list[Step] = []
    rest: list[Step] = []
    waits: list[Step] = []
    for name, builder in SHARDS.items():
        step = f"writing the {name}", _build(builder, name, out, configs)
        if name in SHARED:
            shared.append(step)
            waits.append((f"waiting for the {name}", step[1]))
        else:
            rest.append(step)
    # An image of a composition that no training shows.
    image = out / "world/images/cola/cola_unseen_000000.png"
    return Plan(
        prepare=[("rendering the world", _build("scenes", "world", out, configs))],
        recipe=[
            *shared,
            ("measuring the frozen CLIP", ["evaluate", "--model", CLIP, *benchmarks, *names]),
            (
                "training the MM-Adapter on Cola's queries",
                _fit(configs / "mm_adapter.yaml", recipe, seed),
            ),
        ],
        mixture=[
            *rest,
            *waits,
            (
                "training grounded words on the mixture",
                _fit(configs / "grounded_words.yaml", mixture, seed),
            ),
            ("exporting grounded words", ["export", *checkpoint, "--out", export, "--overwrite"]),
            (
                "scoring an image against its caption and a false one",
                ["score", export, image, *texts],
            ),
        ],
        compare=[
            ("comparing the three", ["report", frozen, recipe, mixture, "--out", out / "report"]),
        ],
    )


def _build(builder: str, name: str, out: Path, configs: Path) -> list[Any]:
    """The command that writes the world or one of its shard sets."""
    return ["build", builder, "--config", configs / f"{name}.yaml", "--out", out / name]


def _fit(config: Path, folder: Path, seed: int) -> list[Any]:
    """A training, resumed if it has a checkpoint."""
    words = ["fit", "--config", config, "--trainer.default_root_dir", folder]
    words += ["--seed_everything", seed]
    last = newest_checkpoint(folder)
    return words if last is None else [*words, "--ckpt_path", last]


def _changed(value: Any, replaced: Mapping[str, str], sizes: Mapping[str, int | float]) -> Any:
    """A config with other folders in its strings and other numbers for the keys in `sizes`."""
    if isinstance(value, dict):
        changed = {}
        for key, inner in value.items():
            changed[key] = sizes[key] if key in sizes else _changed(inner, replaced, sizes)
        return changed
    if isinstance(value, list):
        return [_changed(item, replaced, sizes) for item in value]
    if isinstance(value, str):
        for old, new in replaced.items():
            value = value.replace(old, new)
    return value
