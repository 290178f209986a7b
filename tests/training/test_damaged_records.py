"""One rank alone reads a corrupt image: it is left out and named, and the ranks stay in step."""

import contextlib
import io
import shutil

import pytest
from pytorch_lightning.callbacks import Callback

from tests.data.conftest import spoil
from tests.ranks import run_ranks
from tests.runs import QUIET, module, quiet_trainer, same_weights, weights
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.data import ShardDataModule, ShardSet
from vlmtune.data.sample_order import Consumer
from vlmtune.data.stream import GroupStream
from vlmtune.objectives.info_nce import InfoNCE

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

STEPS = 3  # an epoch of 12 records: 2 ranks with batches of 2


class Seen(Callback):
    """Notes the records and the damage of each batch."""

    def __init__(self):
        self.keys, self.damaged = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.keys.append(list(batch.keys))
        self.damaged += batch.damaged


def keys_of(data, rank):
    """The records of each batch of a rank, read without the trainer."""
    stream = GroupStream((data,), 2, images=False)
    return [[g.key for g in groups] for groups, _ in stream.batches(0, Consumer(rank, 2))]


@pytest.fixture
def corrupt(shards, tmp_path):
    """Shards with a corrupt image in the second record of rank 1's second batch, and its key."""
    shutil.copytree(shards, tmp_path / "shards")
    data = ShardSet(str(tmp_path / "shards"))
    key = keys_of(data, 1)[1][1]
    spoil(data, key)
    return data, key


def train(rank, data, model_folder, folder, workers, max_damaged):
    del rank
    made, seen = module(model_folder, LinearProbe(), [InfoNCE()]), Seen()
    sets = ShardDataModule([data], 2, num_workers=workers, max_damaged=max_damaged)
    trainer = quiet_trainer(
        max_epochs=1, devices=2, strategy="ddp", default_root_dir=folder, callbacks=[seen]
    )
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        trainer.fit(made, datamodule=sets)
    return trainer.global_step, seen.keys, seen.damaged, said.getvalue(), weights(made)


@pytest.mark.parametrize("workers", [0, 2])
def test_both_ranks_take_all_steps(workers, corrupt, model_folder, tmp_path):
    data, key = corrupt
    given = data, model_folder, tmp_path, workers, 0.01
    one, other = run_ranks(2, tmp_path / "ranks", train, *given)
    assert one[0] == other[0] == STEPS
    assert one[1:4] == (keys_of(data, 0), [], "")
    want = keys_of(data, 1)
    want[1][1] = want[1][0]  # the record before takes its place
    assert other[1] == want
    (line,) = other[2]
    assert key in line
    assert other[3] == f"skipped a damaged record: {line}\n"
    assert all(value.isfinite().all() for value in one[4].values())
    assert same_weights(one[4], other[4])


def test_too_many_stop_both_ranks(corrupt, model_folder, tmp_path):
    data, _ = corrupt
    with pytest.raises(AssertionError, match="expected at most 0 damaged of 6 records, got 1"):
        run_ranks(2, tmp_path / "ranks", train, data, model_folder, tmp_path, 0, 0.0)


def test_damage_of_held_out_records_is_named(corrupt, shards, model_folder, tmp_path, capsys):
    data, key = corrupt
    made = module(model_folder, LinearProbe(), [InfoNCE()])
    sets = ShardDataModule([ShardSet(str(shards))], 2, val=[data], max_damaged=0.1)
    quiet_trainer(max_steps=1, default_root_dir=tmp_path).validate(made, sets)
    said = capsys.readouterr().out
    assert said.count("skipped a damaged record: ") == 1
    assert key in said
