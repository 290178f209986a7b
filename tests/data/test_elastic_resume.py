"""A killed run goes on with other numbers of ranks, workers and groups in a batch."""

from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from tests.data.conftest import Numbered
from tests.data.test_datamodule import Toy
from tests.ranks import run_ranks
from tests.refusals import refused
from tests.runs import QUIET, Killed, module, quiet_trainer, same_weights, weights
from tests.runs import fit as fit_steps
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.types import Batch

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


class Following(Toy):
    """Passes a checkpoint on to the datamodule, as the modules of `training` do."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.trainer.datamodule.align(checkpoint)  # type: ignore[attr-defined]


def order(data: ShardSet, epoch: int) -> list[str]:
    """The keys of an epoch, as one reader sees them."""
    stream = GroupStream((data,), 1, seed=5, window=7, images=False)
    return [group.key for groups, _ in stream.batches(epoch) for group in groups]


def sets_of(data: ShardSet, size: int, workers: int = 0) -> ShardDataModule:
    sets = ShardDataModule([data], size, num_workers=workers, seed=5, shuffle_buffer=7)
    sets.use_stored_images()
    return sets


def train(
    data: ShardSet, folder: Path, size: int, workers: int, resume: Path | None = None,
    model: Toy | None = None, ranks: int = 1, **options: Any,
) -> list[list[str]]:  # fmt: skip
    """Returns the keys of each batch of this rank; saves after each step."""
    sets = sets_of(data, size, workers)
    every = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    given = {"max_epochs": 3, "devices": ranks, "default_root_dir": folder, **options}
    if ranks > 1:
        given["strategy"] = "ddp"
    trainer = quiet_trainer(callbacks=[every], **{**given, "enable_checkpointing": True})
    model = model or Following()
    with suppress(Killed):
        trainer.fit(model, datamodule=sets, ckpt_path=resume, weights_only=True)
    return [list(keys) for _, keys in model.seen]


def flat(batches) -> list[str]:
    return list(chain.from_iterable(batches))


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[ShardSet, Path]:
    """A set, and the folder of a run of batches of 4 that was killed after step 7."""
    folder = tmp_path_factory.mktemp("killed")
    Numbered(23, 5, "r").build(folder / "set", progress=False)
    data = ShardSet(str(folder / "set"))
    seen = train(data, folder / "run", 4, 0, model=Following(7))
    assert flat(seen) == [*order(data, 0)[:20], *order(data, 1)[:8]]
    return data, folder / "run"


# 23 groups in an epoch. Steps of 4: 5 to an epoch. Of 3: 7; of 6: 3; of 1: 23; of 8: 2.
# Killed in the middle of an epoch, at its end, and in the second one.
@pytest.mark.parametrize(
    ("die_at", "size", "workers", "limit"),
    [
        *((die_at, 3, 0, "epochs") for die_at in (4, 5, 7)),
        *((die_at, 6, 0, "steps") for die_at in (4, 5, 7)),
        (5, 1, 0, "steps"),
        (7, 8, 0, "epochs"),
        (4, 4, 2, "steps"),
    ],
)
def test_another_batch_size_goes_on_at_the_next_group(
    killed, tmp_path, die_at, size, workers, limit
):
    data, first = killed
    epochs = [order(data, epoch) for epoch in range(3)]
    epoch, done = divmod(4 * die_at, 20)
    # What is left of this epoch, and then whole epochs.
    left = (23 - done) // size * size if done else 23 // size * size
    lengths = [left, *[23 // size * size] * (2 - epoch)]
    starts = [done, *[0] * (2 - epoch)]
    want = flat(
        epochs[epoch + i][start : start + length]
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    )
    options: dict[str, Any] = {"max_epochs": 3}
    if limit == "steps":
        options = {"max_epochs": -1, "max_steps": die_at + len(want) // size}
    then = train(data, tmp_path, size, workers, first / f"step={die_at}.ckpt", **options)
    assert flat(then) == want


@pytest.mark.parametrize(
    ("step", "effect"),
    [(1, "the rest of this epoch may repeat"), (3, "the next epochs have other records")],
)
def test_other_data_are_named_on_resuming(killed, make_set, tmp_path, step, effect):
    """After step 3 no batch is left of an epoch of so few groups."""
    _, first = killed
    with pytest.warns(UserWarning, match=f"a change of sets: {effect}"):
        train(make_set(12, 5), tmp_path, 4, 0, first / f"step={step}.ckpt")


@pytest.mark.parametrize("limit", [3, 0.6])
def test_a_limited_epoch_ends_where_its_batches_end(make_set, tmp_path, limit):
    """Three batches of the six of four, or 60 % of them."""
    data, options = make_set(24, 5), {"limit_train_batches": limit, "max_epochs": 2}
    first = train(data, tmp_path / "one", 4, 0, model=Following(2), **options)
    assert flat(first) == order(data, 0)[:8]
    resume = tmp_path / "one" / "step=2.ckpt"
    for size, batches in [(4, 3), (3, {3: 3, 0.6: 4}[limit])]:
        end = size * batches
        then = train(data, tmp_path / f"{size}", size, 0, resume, **options)
        want = order(data, 0)[8 : 8 + (end - 8) // size * size] + order(data, 1)[:end]
        assert flat(then) == want


def two_ranks(rank, data, folder, resume, options):
    return train(data, folder, 2, 2, resume, ranks=2, **options)


@pytest.mark.parametrize("steps", [2, 5])
def test_one_rank_goes_on_after_two_and_back(make_set, tmp_path, steps):
    """Two ranks of two groups are batches of four; one rank then reads three at a time."""
    data = make_set(23, 5)
    folder, options = tmp_path / "two", {"max_epochs": -1, "max_steps": steps}
    first = run_ranks(2, tmp_path / "group", two_ranks, data, folder, None, options)
    seen = flat(flat(batches) for batches in zip(*first, strict=True))
    epochs = [order(data, 0), order(data, 1)]
    assert seen == epochs[0][: 4 * steps]

    resume, options = folder / f"step={steps}.ckpt", {"max_epochs": -1, "max_steps": steps + 1}
    then = flat(train(data, tmp_path / "one", 3, 3, resume, **options))
    rest = epochs[0][4 * steps :] if steps == 2 else epochs[1]
    assert then == rest[:3]

    resume, options = tmp_path / "one" / f"step={steps + 1}.ckpt", {"max_epochs": 1 + steps // 5}
    back = run_ranks(2, tmp_path / "again", two_ranks, data, tmp_path / "three", resume, options)
    seen = flat(flat(batches) for batches in zip(*back, strict=True))
    assert seen == rest[3 : 3 + (len(rest) - 3) // 4 * 4]


def test_a_module_that_does_not_align_is_refused(make_set, tmp_path):
    data = make_set(23, 5)
    train(data, tmp_path / "one", 4, 0, model=Toy(2))
    resume = tmp_path / "one" / "step=2.ckpt"
    assert flat(train(data, tmp_path / "same", 4, 2, resume, Toy()))[:12] == order(data, 0)[8:20]
    with refused("call `align` of the datamodule"):
        train(data, tmp_path / "other", 6, 0, resume, Toy())


class Summing(Following):
    """Has a weight for each key, and weights that depend on the order of all steps."""

    def __init__(self, die_at: int | None = None) -> None:
        super().__init__(die_at)
        self.by_key = torch.nn.Linear(23, 1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        values = torch.zeros(23)
        values[[int(key[1:]) for key in batch.keys]] = 1.0
        return super().training_step(batch, batch_idx) + self.by_key(values).pow(2).sum()


# Epochs of eleven batches and steps of three: the last step of an epoch has two.
@pytest.mark.parametrize("die_at", [1, 3, 10, 11, 20])
def test_a_checkpoint_between_two_steps_loses_no_gradient(make_set, tmp_path, die_at):
    data, options = make_set(23, 5), {"accumulate_grad_batches": 3, "max_epochs": 2}
    torch.manual_seed(0)
    start = Summing().state_dict()

    def run(folder: str, resume: Path | None) -> tuple[list[str], dict, tuple[int, int]]:
        model = Summing()
        model.load_state_dict(start)
        seen = flat(train(data, tmp_path / folder, 2, 0, resume, model, **options))
        loop = model.trainer.fit_loop.epoch_loop
        # By the first Lightning validates, by the second it logs.
        counted = (loop.batch_progress.total.processed, loop._batches_that_stepped)
        return seen, model.state_dict(), counted

    whole, want, counted = run("whole", None)
    assert whole == order(data, 0)[:22] + order(data, 1)[:22]
    model = Summing(die_at)
    model.load_state_dict(start)
    saving, folder = [EveryBatch(tmp_path / "killed")], tmp_path
    trainer = quiet_trainer(callbacks=saving, devices=1, default_root_dir=folder, **options)
    with pytest.raises(Killed):
        trainer.fit(model, datamodule=sets_of(data, 2))
    last = tmp_path / "killed" / f"{die_at}.ckpt"
    rest, got, counted_again = run("resumed", last)
    done = die_at // 11 * 11 + (die_at % 11) // 3 * 3
    assert rest == whole[2 * done :]
    assert all(got[name].equal(value) for name, value in want.items())
    assert counted_again == counted == (22, 8)
    assert trainer.global_step == die_at // 11 * 4 + (die_at % 11) // 3


class EveryBatch(Callback):
    """Saves after each batch, between two steps, too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any, **options: Any) -> None:
        self.count += 1
        trainer.save_checkpoint(self.folder / f"{self.count}.ckpt")


def test_a_checkpoint_of_lightning_after_half_a_step_loses_no_gradient(
    model_folder, shards, tmp_path
):
    """A resumed run saves after its first batch, which is half a step."""
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "steps": 6}
    whole = module(model_folder)
    fit_steps(whole, shards, tmp_path / "whole", save=True, **options)
    again = module(model_folder)
    first = tmp_path / "whole" / "stepstep=2.ckpt"
    fit_steps(again, shards, tmp_path / "again", save=True, resume=first, die_at=3, **options)
    half = tmp_path / "again" / "stepstep=2.ckpt"
    state = torch.load(half, weights_only=True)["ShardDataModule"]
    assert state["pending"] == 1
    last = module(model_folder)
    _, watch = fit_steps(last, shards, tmp_path / "last", resume=half, **options)
    assert len(watch.losses) == 6  # two whole epochs of three batches
    assert same_weights(weights(last), weights(whole))
