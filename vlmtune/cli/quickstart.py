"""`vlmtune quickstart`: builds a world, trains on it, exports a model and writes reports, on a CPU.

In: a folder and a seed. Out: that folder. It never computes: each step is a command of vlmtune.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from vlmtune.cli.main import run_command
from vlmtune.cli.plugins import read_yaml
from vlmtune.config import find_path

CONFIGS = "configs/experiments/quickstart"
OUT = "runs/quickstart"  # the folder that the configs name
CLIP = "checkpoints/scenes-clip"
CAPTIONS = ("a red cube and a blue sphere", "a blue cube and a red sphere")
RUN_SIZES = {"max_steps": 2, "every_n_steps": 2, "every_n_train_steps": 2, "batch_size": 8}
TINY = {  # config -> values of the size "tiny"
    "world": dict(train=24, val=4, test=30, multi=4, ar4t_test=4, benchmarks=2),
    "linear_probe": RUN_SIZES,
    "mm_adapter": RUN_SIZES,
}


def run(options: argparse.Namespace) -> None:
    """Runs all steps, each behind a line with the seconds since the start.

    World, shards and features in `options.out` are used again. A training goes on from its last
    checkpoint, or is only measured if it is complete.
    """
    start = time.monotonic()

    def announce(text: str) -> None:
        print(f"[{time.monotonic() - start:4.0f} s] {text}", flush=True)

    configs = write_configs(options.out, options.size)
    for title, arguments in steps(options.out, configs, options.seed):
        announce(title)
        run_command([str(argument) for argument in arguments])
    announce(f"done: open {options.out / 'report/report.html'}")


def write_configs(out: Path, size: str) -> Path:
    """Copies the configs to `out/configs`, with `out` in place of `runs/quickstart`."""
    source = find_path(CONFIGS)
    assert source is not None, "configs come with vlmtune"
    replaced = {OUT: str(out), "../../plugins": str(source.parents[1] / "plugins")}
    folder = out / "configs"
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.yaml"):
        sizes = TINY.get(path.stem, {}) if size == "tiny" else {}
        content = _changed(read_yaml(path), replaced, sizes)
        (folder / path.name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return folder


def steps(out: Path, configs: Path, seed: int) -> Iterator[tuple[str, list[Any]]]:
    """The title and the command line of each step; each seed has its own folder of runs."""
    world, shards, export, suite = (out / name for name in ("world", "shards", "export", "suite"))
    probe, adapter = (out / f"seed-{seed}" / name for name in ("linear-probe", "mm-adapter"))
    store = ["--store", out / "features"]
    untrained = ["evaluate", "--model", CLIP, "--name", "zero-shot", *store, "--text-only", shards]
    cola, others = (["--benchmarks", configs / f"{name}.yaml"] for name in ("benchmarks", "suite"))
    yield (
        "rendering the world",
        ["build", "scenes", "--config", configs / "world.yaml", "--out", world],
    )
    yield (
        "writing Cola's training queries",
        ["build", "cola", "--config", configs / "queries.yaml", "--out", shards],
    )
    yield "measuring the frozen CLIP on Cola", [*untrained, *cola, "--out", out / "zero-shot"]
    yield "training the linear probe", _fit(configs / "linear_probe.yaml", probe, seed)
    yield "training the MM-Adapter", _fit(configs / "mm_adapter.yaml", adapter, seed)
    checkpoint = adapter / "checkpoints/last.ckpt"
    yield (
        "exporting the MM-Adapter",
        ["export", checkpoint, "--report", adapter, "--out", export, "--overwrite"],
    )
    image = world / "images/cola/cola_unseen_000000.png"
    texts = [word for caption in CAPTIONS for word in ("--text", caption)]
    yield "scoring an image against its caption and a false one", ["score", export, image, *texts]
    yield (
        "measuring the frozen CLIP on the other benchmarks",
        [*untrained, *others, "--out", suite / "zero-shot"],
    )
    measured = ["evaluate", "--model", export, "--name", "MM-Adapter", *store, *others]
    yield "measuring the MM-Adapter on them", [*measured, "--out", suite / "mm-adapter"]
    yield (
        "comparing the two on them",
        ["report", suite / "zero-shot", suite / "mm-adapter", "--out", suite / "report"],
    )
    yield (
        "comparing all three on Cola",
        ["report", out / "zero-shot", probe, adapter, "--out", out / "report"],
    )


def _fit(config: Path, folder: Path, seed: int) -> list[Any]:
    """A training, resumed if it has a checkpoint."""
    seeds = [
        x for key in ("seed_everything", "model.seed", "data.seed") for x in (f"--{key}", seed)
    ]
    last = folder / "checkpoints/last.ckpt"
    resumed = ["--ckpt_path", last] if last.is_file() else []
    return ["fit", "--config", config, *resumed, "--trainer.default_root_dir", folder, *seeds]


def _changed(value: Any, replaced: Mapping[str, str], sizes: Mapping[str, int]) -> Any:
    """A config with other folders in its strings and other numbers for the keys in `sizes`."""
    if isinstance(value, dict):
        return {k: sizes.get(k, _changed(v, replaced, sizes)) for k, v in value.items()}
    if isinstance(value, list):
        return [_changed(item, replaced, sizes) for item in value]
    if isinstance(value, str):
        for old, new in replaced.items():
            value = value.replace(old, new)
    return value
