import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.data.conftest import spoil
from vlmtune.data.sample_order import Consumer
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.errors import UserError

MakeSet = Callable[..., ShardSet]


def read(
    stream: GroupStream, epoch: int = 0, consumer: Consumer | None = None, start: int = 0
) -> list[list[str]]:
    """The keys of each batch."""
    batches = []
    for groups, _ in stream.batches(epoch, consumer, start):
        batches.append([group.key for group in groups])
    return batches


def read_all(
    stream: GroupStream, epoch: int, world: int, workers: int, start: int = 0
) -> list[list[str]]:
    """The keys of each global batch in turn, as the data loaders of all ranks deliver them."""
    parts: dict[tuple[int, int], list[list[str]]] = {}
    for rank, worker in itertools.product(range(world), range(workers)):
        consumer = Consumer(rank, world, worker, workers)
        parts[rank, worker] = read(stream, epoch, consumer, start)
    count = sum(len(parts[0, worker]) for worker in range(workers))
    batches = []
    for number in range(count):
        turn, worker = divmod(number, workers)
        batches.append(flat([parts[rank, worker][turn] for rank in range(world)]))
    return batches


def flat(parts: list[list[str]]) -> list[str]:
    return [key for part in parts for key in part]


@pytest.fixture(params=[(9, 9), (13, 10), (14, 3)], ids=["1 shard", "2 shards", "5 shards"])
def data(request: pytest.FixtureRequest, make_set: MakeSet) -> ShardSet:
    return make_set(*request.param)


@pytest.mark.parametrize(("world", "workers"), [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)])
def test_evaluation_sees_each_record_exactly_once(data, world, workers):
    stream = GroupStream((data,), 2, train=False, images=False)
    seen = []
    assert len({stream.length(rank, world) for rank in range(world)}) == 1
    for rank in range(world):
        batches = [read(stream, 0, Consumer(rank, world, w, workers)) for w in range(workers)]
        assert all(1 <= len(batch) <= 2 for part in batches for batch in part)
        count = sum(map(len, batches))
        assert count == stream.length(rank, world)
        seen += flat([batches[g % workers][g // workers] for g in range(count)])
    assert seen == [f"r{i}" for i in range(data.manifest.records)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((4, 2, 1), (2, 3, 1)),
        ((4, 2, 1), (2, 1, 2)),
        ((2, 3, 1), (4, 2, 1)),
        ((1, 2, 3), (2, 1, 2)),
    ],
)
def test_an_epoch_goes_on_in_another_shape(data, one, other):
    """Ranks, workers and groups in a batch."""
    (world, workers, size), (then_world, then_workers, then_size) = one, other
    whole = flat(read(GroupStream((data,), 1, window=6, images=False)))
    stream = GroupStream((data,), size, window=6, images=False)
    batches = read_all(stream, 0, world, workers)
    for done in range(len(batches) + 1):
        start = done * world * size
        then = GroupStream((data,), then_size, window=6, images=False)
        rest = flat(read_all(then, 0, then_world, then_workers, start))
        assert flat(batches[:done]) + rest == whole[: start + len(rest)]
        assert len(whole) - start - len(rest) < then_world * then_size


def test_weights_are_respected_exactly(make_set):
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
    kinds = "".join(key[0] for key in flat(parts))
    assert "b" in kinds[:25]
    assert "b" in kinds[25:]


def test_a_damaged_image_is_replaced_and_reported(make_set):
    data = make_set(20)
    sound = GroupStream((data,), 2, window=5)
    before = flat(read(sound))
    spoil(data, "r4")
    batches = list(sound.batches())
    place = before.index("r4")
    want = [*before[:place], before[place - 1], *before[place + 1 :]]
    assert [group.key for groups, _ in batches for group in groups] == want
    (line,) = [line for _, lines in batches for line in lines]
    assert line.startswith(f"{data.files[0]} r4 image refused")
    # The same record replaces it wherever reading starts, and whoever reads.
    for start in range(0, 20, 2):
        assert flat(read(sound, start=start)) == want[start:]
    for world, workers, size in [(1, 3, 1), (2, 2, 1), (5, 1, 2), (2, 2, 5)]:
        assert flat(read_all(replace(sound, batch_size=size), 0, world, workers)) == want
    # Where images are not decoded, their damage does not matter.
    assert flat(read(replace(sound, images=False))) == before


@pytest.mark.parametrize("seed", range(12))
def test_damage_at_the_start_goes_round(seed, make_set):
    data = make_set(3)
    before = flat(read(GroupStream((data,), 1, seed=seed, window=0)))
    spoil(data, "r1")
    place = before.index("r1")
    before[place] = before[place - 1]  # the last one for the first
    assert flat(read(GroupStream((data,), 1, seed=seed, window=0))) == before


def test_evaluation_leaves_damage_out_and_reports_it(make_set):
    for number, name in ((1, "x"), (8, "y")):
        data = make_set(9, prefix=name)
        spoil(data, f"{name}{number}")
        batches = list(GroupStream((data,), 4, train=False).batches())
        keys = [group.key for groups, _ in batches for group in groups]
        assert keys == [f"{name}{i}" for i in range(9) if i != number]
        assert len([line for _, lines in batches for line in lines]) == 1
        assert all(groups for groups, _ in batches)


def test_too_much_damage_fails_in_one_line(make_set, damage_set):
    data = make_set(20)
    damage_set(data, b"\x89PNG\r\n", b"notpng")
    for train in (True, False):
        with pytest.raises(UserError, match="expected at most 1 damaged of 20") as error:
            read(GroupStream((data,), 2, train=train))
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="at most 1 damaged of 20"):  # wherever it begins
        read(GroupStream((data,), 2), start=16)
    with pytest.raises(UserError, match="at most 20 damaged of 20 records, got 20"):
        read(GroupStream((data,), 2, max_damaged=0.999))
    with pytest.raises(UserError, match="at most 0 damaged"):
        read(GroupStream((data,), 2, max_damaged=0.0))


def test_a_shard_that_breaks_off_is_one_line(make_set, tmp_path):
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
