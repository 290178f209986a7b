from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vlmtune.data.sample_order import Consumer
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream, buffer_shuffle, check_sets
from vlmtune.data.tar_records import RawRecord, read_records
from vlmtune.errors import UserError

MakeSet = Callable[..., ShardSet]
DamageSet = Callable[[ShardSet, bytes, bytes], None]


def read(
    stream: GroupStream, epoch: int = 0, consumer: Consumer | None = None, skip: int = 0
) -> list[list[str]]:
    """The keys of each batch."""
    return [[g.key for g in groups] for groups, _ in stream.batches(epoch, consumer, skip)]


def read_all(stream: GroupStream, epoch: int, world: int, workers: int) -> list[list[str]]:
    return [
        [key for batch in read(stream, epoch, Consumer(r, world, w, workers)) for key in batch]
        for r in range(world)
        for w in range(workers)
    ]


def flat(parts: list[list[str]]) -> list[str]:
    return [key for part in parts for key in part]


@pytest.fixture(params=[(9, 9), (13, 10), (14, 3)], ids=["1 shard", "2 shards", "5 shards"])
def data(request: pytest.FixtureRequest, make_set: MakeSet) -> ShardSet:
    return make_set(*request.param)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_evaluation_sees_each_record_exactly_once(data: ShardSet, world: int, workers: int) -> None:
    stream = GroupStream((data,), 2, train=False, images=False)
    seen = flat(read_all(stream, 0, world, workers))
    assert seen == [f"r{i}" for i in range(data.manifest.records)]
    for rank in range(world):
        batches = [read(stream, 0, Consumer(rank, world, w, workers)) for w in range(workers)]
        assert sum(map(len, batches)) == stream.length(rank, world)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_training_gives_every_rank_equally_many_distinct_records(
    data: ShardSet, world: int, workers: int
) -> None:
    stream = GroupStream((data,), 2, buffer=3, images=False)
    parts = read_all(stream, 0, world, workers)
    per_rank = [sum(map(len, parts[r * workers : (r + 1) * workers])) for r in range(world)]
    assert set(per_rank) == {2 * stream.length(0, world)}
    assert set(Counter(flat(parts)).values()) == {1}


def test_equal_pieces_for_equal_work(make_set: MakeSet) -> None:
    stream = GroupStream((make_set(24, 5),), 2, images=False)
    assert {len(part) for part in read_all(stream, 0, 2, 3)} == {4}


def test_epochs_seeds_ranks_and_workers_differ_and_repeat(data: ShardSet) -> None:
    stream = GroupStream((data,), 1, buffer=4, images=False)
    orders = {
        tuple(flat(read(replace(stream, seed=seed), epoch)))
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 6
    assert read(stream, 1) == read(stream, 1)
    assert all(sorted(order) == sorted(flat(read(stream, 0))) for order in orders)


def test_what_an_epoch_leaves_out_changes(make_set: MakeSet) -> None:
    stream = GroupStream((make_set(7),), 4, images=False)
    assert set(flat([flat(read(stream, epoch)) for epoch in range(20)])) == {
        f"r{i}" for i in range(7)
    }


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("buffer", [0, 3, 100])
def test_skip_gives_the_rest_of_the_stream(data: ShardSet, workers: int, buffer: int) -> None:
    stream = GroupStream((data,), 2, buffer=buffer, images=False)
    for worker in range(workers):
        consumer = Consumer(0, 1, worker, workers)
        whole = read(stream, 3, consumer)
        for skip in range(len(whole) + 2):
            assert read(stream, 3, consumer, skip) == whole[skip:]


def test_weights_are_respected_exactly(make_set: MakeSet) -> None:
    a, b = make_set(10, prefix="a"), make_set(20, 7, prefix="b")
    stream = GroupStream((a, b), 1, total=50, images=False)
    seen = Counter(key[0] for key in flat(read(stream)))
    assert seen == {"a": 17, "b": 33}
    weighted = ShardSet(a.path, weight=8.0)
    stream = GroupStream((weighted, b), 1, total=50, images=False)
    parts = read_all(stream, 0, 2, 2)
    seen = Counter(flat(parts))
    assert sum(n for key, n in seen.items() if key[0] == "a") == 40
    # Four whole passes over the small set, half a pass over the large one.
    assert {seen[f"a{i}"] for i in range(10)} == {4}
    assert {seen[f"b{i}"] for i in range(20)} == {0, 1}
    # They are mixed, not one after the other.
    kinds = [key[0] for key in parts[0]]
    assert 0 < kinds.index("b") < len(kinds) - 1


def test_without_weights_each_record_comes_once(make_set: MakeSet) -> None:
    stream = GroupStream((make_set(3, prefix="a"), make_set(9, prefix="b")), 1, images=False)
    assert sorted(flat(read(stream))) == sorted(
        [f"a{i}" for i in range(3)] + [f"b{i}" for i in range(9)]
    )


def corrupt(data: ShardSet, number: int, encoded_png: Callable[..., bytes]) -> None:
    """Spoils the image of record `number` (which has one), found by its place in the tar."""
    assert number % 3
    raw = next(iter(read_records(data.files[0], number, number + 1)))
    assert isinstance(raw, RawRecord)
    offset, _ = raw.spans["0.png"]
    content = bytearray(data.files[0].read_bytes())
    content[offset : offset + 8] = b"notapng!"
    data.files[0].write_bytes(bytes(content))


def test_a_damaged_image_is_replaced_and_reported(
    make_set: MakeSet, encoded_png: Callable[..., bytes]
) -> None:
    data = make_set(20)
    sound = GroupStream((data,), 2, buffer=5)
    before = read(sound)
    corrupt(data, 4, encoded_png)
    batches = list(sound.batches())
    after = [[group.key for group in groups] for groups, _ in batches]
    place = flat(before).index("r4")
    assert flat(after)[:place] == flat(before)[:place]
    assert flat(after)[place + 1 :] == flat(before)[place + 1 :]
    assert flat(after)[place] == flat(before)[(place + 1) % 20]
    (line,) = [line for _, lines in batches for line in lines]
    assert line.startswith(f"{data.files[0]} r4 image refused")
    for skip in range(11):
        assert read(sound, 0, None, skip) == after[skip:]
    # Where images are not decoded, their damage does not matter.
    assert read(replace(sound, images=False)) == before


@pytest.mark.parametrize("seed", range(12))
def test_damage_at_the_end_goes_round(
    seed: int, make_set: MakeSet, encoded_png: Callable[..., bytes]
) -> None:
    data = make_set(3)
    corrupt(data, 1, encoded_png)
    stream = GroupStream((data,), 1, seed=seed, buffer=0)
    keys = flat(read(stream))
    assert len(keys) == 3
    assert set(keys) == {"r0", "r2"}


def test_evaluation_leaves_damage_out_and_reports_it(
    make_set: MakeSet, encoded_png: Callable[..., bytes]
) -> None:
    for number, name in ((1, "x"), (8, "y")):
        data = make_set(9, prefix=name)
        corrupt(data, number, encoded_png)
        batches = list(GroupStream((data,), 4, train=False).batches())
        keys = [group.key for groups, _ in batches for group in groups]
        assert keys == [f"{name}{i}" for i in range(9) if i != number]
        assert len([line for _, lines in batches for line in lines]) == 1
        assert all(groups for groups, _ in batches)


def test_too_much_damage_fails_in_one_line(make_set: MakeSet, damage_set: DamageSet) -> None:
    data = make_set(20)
    damage_set(data, b"\x89PNG\r\n", b"notpng")
    for train in (True, False):
        with pytest.raises(UserError, match="expected at most 1 damaged of 20") as error:
            read(GroupStream((data,), 2, train=train))
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="at most 20 damaged of 20 records, got 20"):
        read(GroupStream((data,), 2, max_damaged=0.999))
    with pytest.raises(UserError, match="at most 0 damaged"):
        read(GroupStream((data,), 2, max_damaged=0.0))


def test_a_shard_that_breaks_off_is_one_line(make_set: MakeSet, tmp_path: Path) -> None:
    data = make_set(20)
    content = data.files[0].read_bytes()
    half = len(content) // 2 // 512 * 512
    data.files[0].write_bytes(content[:half] + b"\0" * (len(content) - half))
    stream = GroupStream((data,), 2, max_damaged=0.9)
    batches = list(stream.batches())
    assert sum(len(groups) for groups, _ in batches) == 20
    lines = [line for _, lines in batches for line in lines]
    assert len([line for line in lines if "the tar ends early" in line]) == 1
    assert len(lines) <= 2  # the record that was cut through may be another


def test_records_without_stored_features_are_damage(make_set: MakeSet) -> None:
    data = make_set(9)
    stored = {f"image-r{i}-{j}" for i in range(9) for j in range(2)} - {"image-r4-0"}
    stream = GroupStream((data,), 3, images=False, stored=stored)
    batches = list(stream.batches())
    assert "r4" not in [group.key for groups, _ in batches for group in groups]
    assert "image-r4-0 has no stored features" in "".join(
        line for _, lines in batches for line in lines
    )


def test_buffer_shuffle_is_a_bounded_permutation() -> None:
    for size in (0, 1, 5, 100):
        out = list(buffer_shuffle(range(50), size, np.random.default_rng(0)))
        assert sorted(out) == list(range(50))
        assert (out == list(range(50))) == (size < 2)
        # An item cannot come out before the buffer that must hold it was read.
        assert all(item <= place + max(size, 1) for place, item in enumerate(out))


def test_no_sets_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least one shard set in train"):
        check_sets([], "train")
    with pytest.raises(UserError, match="run `vlmtune build` first"):
        check_sets([ShardSet(str(tmp_path / "none"))], "train")
