import multiprocessing
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentError, ArgumentParser
from PIL import Image
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from tests.refusals import refused
from tests.runs import QUIET, Killed, quiet_trainer
from tests.tiny import plugin
from vlmtune.data.catalogue import catalogue, decoded_images
from vlmtune.data.datamodule import EpochLoader, ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.types import Batch

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*worker processes in total.*")]


class Toy(LightningModule):
    """Notes the keys it is trained on, and is killed at the step it is told."""

    def __init__(self, die_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.preprocess = preprocess
        self.die_at = die_at
        self.steps = 0
        self.seen: list[tuple[int, tuple[str, ...]]] = []
        self.validated: list[str] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        if self.steps == self.die_at:
            raise Killed
        self.steps += 1
        self.seen.append((batch_idx, batch.keys))
        return self.layer(torch.ones(1)).sum()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.validated += batch.keys

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def preprocess(image: Image.Image) -> Tensor:
    return torch.full((3, 2, 2), float(image.getpixel((0, 0))[0]))


def fit(
    module: Toy,
    data: ShardDataModule,
    folder: Path,
    resume: Path | None = None,
    checkpoint: ModelCheckpoint | None = None,
    **arguments: Any,
) -> Toy:
    if checkpoint is not None:
        arguments |= {"callbacks": [checkpoint], "enable_checkpointing": True}
    given = {"max_epochs": 3, "devices": 1, "default_root_dir": folder, **arguments}
    trainer = quiet_trainer(**given)
    trainer.fit(module, datamodule=data, ckpt_path=resume and str(resume), weights_only=False)
    return module


def keys(loader: Any) -> list[tuple[str, ...]]:
    return [batch.keys for batch in loader]


def epoch(stream: GroupStream, workers: int) -> EpochLoader:
    return EpochLoader(stream, None, lambda: (0, 0), 0, 1, workers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_outlive_a_signal_to_all_processes_of_a_job(make_set, number):
    stream = GroupStream((make_set(60, 4),), 1, images=False)
    before, batches = set(multiprocessing.active_children()), iter(epoch(stream, 2))
    seen = [next(batches).keys for _ in range(2)]  # one of each worker: both have begun
    workers = set(multiprocessing.active_children()) - before
    for worker in workers:
        os.kill(int(worker.pid or 0), number)
    assert len(workers) == 2
    assert seen + [batch.keys for batch in batches] == keys(epoch(stream, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
def test_workers_are_forked_where_another_start_is_the_default(make_set):
    data = make_set(6)
    default = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)  # as Python 3.14 has "forkserver"
    try:
        loader = epoch(GroupStream((data,), 2), 2)
        loader.preprocess = lambda image: preprocess(image)  # cannot be sent to another process
        assert len(keys(loader)) == 3
        images = catalogue([data]).images
        decoded = decoded_images(images, loader.preprocess, 2, 2, max_damaged=0.0, total=8)
        assert sum(len(ids) for ids, _ in decoded) == len(images)
    finally:
        multiprocessing.set_start_method(default, force=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_user_errors_of_workers_stay_one_line(make_set, damage_set, workers):
    data = make_set(20)
    damage_set(data, b"\x89PNG\r\n", b"notpng")
    with refused("expected at most 1 damaged"):
        keys(epoch(GroupStream((data,), 2), workers))


@pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 11}])
def test_resuming_from_the_end_of_an_epoch(make_set, tmp_path, limit):
    def data() -> ShardDataModule:
        return ShardDataModule([make_set(9, 4)], 2, val=[make_set(5, prefix="v")])

    whole = fit(Toy(), data(), tmp_path, **limit)
    epochs = 3 if "max_steps" not in limit else 2
    assert Counter(whole.validated) == {f"v{i}": epochs for i in range(5)}
    each_epoch = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    with pytest.raises(Killed):
        fit(Toy(6), data(), tmp_path, checkpoint=each_epoch, **limit)
    resumed = fit(Toy(), data(), tmp_path, resume=tmp_path / "epoch=0.ckpt", **limit)
    assert resumed.seen == whole.seen[4:]


def test_a_damaged_record_reaches_the_batch(make_set, tmp_path):
    data = ShardDataModule([make_set(9)], 3)
    data.use_stored_images({f"image-r{i}-{j}" for i in range(9) for j in (0, 1)} - {"image-r1-0"})
    lines = [line for batch in data.train_dataloader() for line in batch.damaged]
    assert len(lines) == 1
    assert "image-r1-0 has no stored features" in lines[0]


def test_what_works_without_a_trainer(make_set):
    train, val = make_set(4), make_set(2, prefix="v")
    data = ShardDataModule([train], 2, val=[val])
    assert len(data.distinct_texts()) == 9
    assert data.distinct_texts() == sorted(data.distinct_texts())
    ids = list(data.image_ids())
    assert ids[0] == "image-r0-0"
    assert ids[-1] == "image-v1-0"
    assert ids == list(data.image_digests())
    ((some, pixels),) = data.distinct_images(preprocess, ids[3:1:-1])
    assert some == tuple(ids[3:1:-1])
    assert len(pixels) == 2
    assert data.digest() != data.digest("val")
    assert data.digest() == ShardDataModule([train], 7).digest()
    with refused("whose module preprocesses images"):
        data.train_dataloader()
    data.use_stored_images()
    assert {batch.pixels for batch in data.train_dataloader()} == {None}


def test_the_length_of_an_epoch_can_be_set(make_set):
    data = ShardDataModule([make_set(4)], 2, epoch_groups=10)
    data.use_stored_images()
    loader = data.train_dataloader()
    assert len(loader) == len(keys(loader)) == 5


OUT_OF_RANGE = [("batch_size", 0), ("num_workers", -1), ("seed", -1), ("epoch_groups", 0)]
OUT_OF_RANGE += [("shuffle_buffer", -1), ("max_damaged", 1.0), ("captions", 0)]
OUT_OF_RANGE += [("train.weight", x) for x in (0.0, float("nan"))]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_the_types_of_a_config_hold_its_bounds(name, value):
    shards = plugin("data.shards.ShardSet", path="none")
    config = {"train": [shards], "batch_size": 1}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ShardDataModule, "data")
    part, _, option = name.rpartition(".")
    {"": config, "train": shards["init_args"]}[part][option] = value
    with pytest.raises(ArgumentError, match=option):
        parser.parse_object({"data": config})


def test_missing_sets_are_said_at_setup(tmp_path, make_set):
    with refused("at least one shard set in train"):
        ShardDataModule([], 1).setup("fit")
    with refused("run `vlmtune build` first"):
        ShardDataModule([make_set(1)], 1, val=[ShardSet(str(tmp_path / "none"))]).setup("fit")
    # Without validation records `vlmtune validate` still measures benchmarks.
    ShardDataModule([make_set(1)], 1).setup("validate")
    data = ShardDataModule([make_set(1)], 2)
    data.use_stored_images()
    with refused("lower data.batch_size or add data"):
        data.train_dataloader()
