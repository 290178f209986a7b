"""Rendered sets: batches are a function of seed and position, whatever reads them."""

import pytest
from PIL import Image

from data_builders.shard_builder import images_group
from tests.refusals import refused
from tests.runs import QUIET
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.loader import EpochLoader
from vlmtune.data.rendered import RenderedSet
from vlmtune.data.sample_order import Consumer
from vlmtune.data.stream import GroupStream
from vlmtune.types import Group

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:.*worker processes in total.*")]


class Shades(RenderedSet):
    """Group n of epoch e is called `<name>e-n`; its image has the shade n."""

    def __init__(self, records: int, name: str = "a", weight: float = 1.0) -> None:
        super().__init__(records, weight)
        self.name = name

    def groups(self, epoch: int, start: int, count: int) -> list[Group]:
        made = []
        for n in range(start, start + count):
            key, image = f"{self.name}{epoch}-{n}", Image.new("RGB", (4, 4), (n % 256, 0, 0))
            made.append(images_group(key, [key], ("a shade",), [{"a shade"}], pictures=(image,)))
        return made


def keys(loader):
    return [batch.keys for batch in loader]


def loader(stream: GroupStream, workers: int, position: tuple[int, int], rank=0, world=1):
    return EpochLoader(stream, None, lambda: position, rank, world, workers)


def test_each_batch_has_the_groups_of_its_positions():
    stream = GroupStream((Shades(11),), 3)
    assert keys(loader(stream, 0, (0, 0))) == [
        ("a0-0", "a0-1", "a0-2"),
        ("a0-3", "a0-4", "a0-5"),
        ("a0-6", "a0-7", "a0-8"),
    ]
    assert keys(loader(stream, 0, (4, 6))) == [("a4-6", "a4-7", "a4-8")]
    second = loader(GroupStream((Shades(12),), 3), 0, (0, 0), rank=1, world=2)
    assert keys(second) == [("a0-3", "a0-4", "a0-5"), ("a0-9", "a0-10", "a0-11")]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_no_batch(workers):
    stream = GroupStream((Shades(20), Shades(10, "b", weight=2.0)), 5, seed=3)
    alone = keys(loader(stream, 0, (1, 0)))
    assert len(alone) == 6
    assert keys(loader(stream, workers, (1, 0))) == alone
    assert keys(loader(stream, workers, (1, 15))) == alone[3:]
    names = [name for batch in alone for name in batch]
    assert len(set(names)) == 30
    assert sum(name.startswith("b") for name in names) == 15


def test_a_mixture_with_shards_reads_both_and_resumes(make_set):
    stream = GroupStream((make_set(8, 4), Shades(8)), 2, seed=1, window=3)
    whole = keys(loader(stream, 0, (0, 0)))
    names = [name for batch in whole for name in batch]
    assert sorted(names) == sorted([f"r{n}" for n in range(8)] + [f"a0-{n}" for n in range(8)])
    assert [name for name in names if name[0] == "a"] == [f"a0-{n}" for n in range(8)]
    for workers in (0, 2):
        assert keys(loader(stream, workers, (0, 6))) == whole[3:]


def test_validation_has_groups_that_training_never_has_and_digests_tell_groups():
    stream = GroupStream((Shades(5),), 2, train=False)
    names = {name for batch, _ in stream.batches(0, Consumer()) for name in (g.key for g in batch)}
    assert len(names) == 5
    assert not any(name.startswith("a0-") for name in names)
    assert Shades(4).digest() == Shades(4).digest()
    assert Shades(4).digest() != Shades(4, "b").digest()


def test_what_needs_all_images_before_training_is_refused():
    data = ShardDataModule([Shades(4)], 2)
    with refused(
        "expected shards, got Shades, which renders while training: set model.store to null"
    ):
        data.distinct_texts()
