"""Tiny training runs that several tests share."""

import copy
import functools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import yaml
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from vlmtune.adapters import Adapter, MMAdapter
from vlmtune.adapters.trained_state import trained_state
from vlmtune.backbones.open_clip.open_clip import OpenClip
from vlmtune.cli.fit import NOISE
from vlmtune.config import ROOT, Configured, instantiate
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.objectives import Objective, PairBCE
from vlmtune.training.module import AdaptationModule

T = TypeVar("T", bound=Configured)
# What Lightning says of tiny runs on a CPU.
QUIET = [pytest.mark.filterwarnings(f"ignore:{pattern}") for pattern in NOISE]


def plugin_of(kind: str, stem: str, base: type[T], **options: Any) -> T:
    """The plug-in of a YAML in configs/plugins, with some options of one's own."""
    path = ROOT / "configs/plugins" / kind / f"{stem}.yaml"
    spec = yaml.safe_load(path.read_text())
    if options:
        spec["init_args"] |= options
    return instantiate(spec, base)


class Killed(Exception):
    pass


class Watch(Callback):
    """Notes the loss and the learning rates of each step, and dies where it is told."""

    def __init__(self, die_at: int | None = None) -> None:
        self.die_at = die_at
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.decoded: list[bool] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.die_at:
            raise Killed
        self.decoded.append(batch.pixels is not None)
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))


@functools.cache
def read_once(model: str) -> OpenClip:
    """The backbone of a folder; what is changed or trained is a copy of it."""
    return OpenClip(model)


def module(
    model: Path,
    adapter: Adapter | None = None,
    objectives: list[Objective] | None = None,
    **options: Any,
) -> AdaptationModule:
    """An MM-Adapter with dropout under PairBCE, unless said otherwise."""
    adapter = adapter or MMAdapter(heads=2, hidden=2, dropout=0.1)
    backbone = copy.deepcopy(read_once(str(model)))
    return AdaptationModule(backbone, adapter, objectives or [PairBCE()], **options)


class Clock(Callback):
    """A clock that stands still but for a second before each batch, and what a test adds to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def on_train_batch_start(self, *_: Any) -> None:
        self.now += 1.0


def weights(made: AdaptationModule) -> dict[str, torch.Tensor]:
    """A copy of what is trained."""
    state = trained_state(made.backbone, made.adapter)
    return {name: value.detach().clone() for name, value in state.items()}


def same_weights(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether the names are the same and, to the last bit, the values."""
    return one.keys() == other.keys() and all(value.equal(other[n]) for n, value in one.items())


def quiet_trainer(**options: Any) -> Trainer:
    """A trainer on the CPU that shows, logs and saves nothing, unless said otherwise."""
    off = ["logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"]
    quiet = dict.fromkeys([*off, "use_distributed_sampler"], False)
    return Trainer(**{"accelerator": "cpu", "num_sanity_val_steps": 0, **quiet, **options})


class Batches:
    """A loader of given batches."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def fit(
    made: AdaptationModule,
    shards: Path,
    folder: Path,
    steps: int = 6,
    callbacks: tuple[Callback, ...] = (),
    save: bool = False,
    resume: Path | None = None,
    die_at: int | None = None,
    val: bool = False,
    batch_size: int = 4,
    **options: Any,
) -> tuple[Trainer, Watch]:
    """Trains for `steps` steps, three to an epoch; saves after each where `save` is set.

    Where `die_at` is given the run is killed before that step.
    """
    watch = Watch(die_at)
    every = ModelCheckpoint(folder, "step{step}", every_n_train_steps=1, save_top_k=-1)
    callbacks = (watch, *callbacks, *([every] if save else []))
    given = {"devices": 1, "default_root_dir": folder, "enable_checkpointing": save, **options}
    trainer = quiet_trainer(max_steps=steps, callbacks=list(callbacks), **given)
    sets = [ShardSet(str(shards))]
    data = ShardDataModule(sets, batch_size=batch_size, val=sets if val else None)
    try:
        trainer.fit(made, datamodule=data, ckpt_path=resume, weights_only=True)
    except Killed:
        assert die_at is not None
    return trainer, watch
