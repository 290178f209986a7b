"""Trains with Ray Train, a worker for each GPU. After a failure all workers start again and resume.

python scripts/cluster/ray_train.py --config run.yaml
"""

import os
import sys
from pathlib import Path

from ray.train import (  # pyright: ignore[reportMissingImports]
    FailureConfig,
    RunConfig,
    ScalingConfig,
    get_context,
)
from ray.train.torch import TorchTrainer  # pyright: ignore[reportMissingImports]

from vlmtune.cli.main import main

GPUS = 16
RUN = Path("runs/mine").absolute()
HERE = Path.cwd()


def written(path: Path) -> float:
    """When a checkpoint was written."""
    return path.stat().st_mtime


def train(words: list[str]) -> None:
    """What each worker runs; `words` are arguments of `vlmtune fit`."""
    os.chdir(HERE)
    context = get_context()
    per_node = context.get_local_world_size()
    nodes = context.get_world_size() // per_node
    words = ["fit", *words, f"--trainer.devices={per_node}", f"--trainer.num_nodes={nodes}"]
    words += ["--trainer.default_root_dir", str(RUN)]
    checkpoints = [*RUN.glob("last-on-signal.ckpt"), *RUN.glob("checkpoints/last.ckpt")]
    if checkpoints:
        words += ["--ckpt_path", str(max(checkpoints, key=written))]
    if main(words) != 0:
        raise RuntimeError("expected a training that ends well, got an error: read its line above")


if __name__ == "__main__":
    TorchTrainer(
        train,
        train_loop_config=sys.argv[1:],
        scaling_config=ScalingConfig(num_workers=GPUS, use_gpu=True),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
