from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.refusals import refused
from vlmtune.data.sample_order import (
    CHUNK,
    Consumer,
    Entry,
    EpochOrder,
    ShardPasses,
    apportion,
    interleave,
    train_batches,
    validation_ranges,
)


def test_too_few_groups_are_an_error():
    with refused("at least 8 groups"):
        train_batches(7, 4, 2)
    with refused("at least 3 groups"):
        list(validation_ranges(2, 4, Consumer(world=3)))


@pytest.mark.parametrize("counts", [[5], [3, 0, 4], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("key", [None, (0, 0), (0, 1)])
def test_each_pass_has_every_record_once(counts, key):
    total = sum(counts)
    everything = {(shard, i) for shard, count in enumerate(counts) for i in range(count)}
    sequence = located(ShardPasses(counts, key), range(3 * total))
    for number in range(3):
        assert set(sequence[number * total : (number + 1) * total]) == everything
    # Any numbers, in any order and from new passes, are where the whole has them.
    chosen = [2 * total, 1, total - 1, total, 0]
    assert located(ShardPasses(counts, key), chosen) == [sequence[i] for i in chosen]


def located(passes: ShardPasses, numbers) -> list[tuple[int, int]]:
    shards, records = passes.locate(np.array(numbers))
    return list(zip(shards.tolist(), records.tolist(), strict=True))


def test_a_pass_goes_through_shards_from_start_to_end():
    on_disk = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert located(ShardPasses([2, 1, 2], None), range(5)) == on_disk
    shuffled = located(ShardPasses([50] * 20, (3, 1)), range(1000))
    assert sum(b == (a[0], a[1] + 1) for a, b in pairwise(shuffled)) >= 1000 - 21


def test_passes_and_epochs_differ_and_repeat():
    counts, numbers = [4, 4, 4, 4], range(32)
    seeds = [(0, 0), (0, 1), (1, 0), (1, 1)]
    sequences = [located(ShardPasses(counts, seed), numbers) for seed in seeds]
    assert len({tuple(sequence) for sequence in sequences}) == 4
    assert sequences[0][:16] != sequences[0][16:]
    assert sequences[0] == located(ShardPasses(counts, (0, 0)), numbers)
    # One shard does not always lose its tail.
    lost = {located(ShardPasses([10], (0, epoch)), [9])[0] for epoch in range(200)}
    assert len(lost) == 10


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], [0.1, 5.0, 3.3], [1e-9, 1.0]])
def test_apportioned_parts_are_exact_and_fair(weights):
    for total in (0, 1, 7, 100):
        parts = apportion(total, weights)
        assert sum(parts) == total
        exact = np.array(weights) / sum(weights) * total
        assert np.abs(np.array(parts) - exact).max() < 1


@pytest.mark.parametrize("parts", [[7], [4, 2], [0, 3, 0, 5], [30, 1, 9], [1, 1, 1, 1]])
@pytest.mark.parametrize("seed", [0, 1])
def test_sets_are_spread_evenly_from_any_position(parts, seed):
    total, rng = sum(parts), np.random.default_rng(seed)
    phases = [int(rng.integers(max(1, sum(parts[i:])))) for i in range(len(parts))]
    sets, numbers = interleave(parts, 0, total, phases)
    for number, part in enumerate(parts):
        assert numbers[sets == number].tolist() == list(range(part))
    for start in range(total + 1):
        for stop in range(start, total + 1):
            again = interleave(parts, start, stop, phases)
            assert again[0].tolist() == sets[start:stop].tolist()
            assert again[1].tolist() == numbers[start:stop].tolist()
    # The largest set, which comes first here or is nearly all, keeps its share in every stretch.
    if parts == [30, 1, 9]:
        for stop in range(total + 1):
            assert abs((sets[:stop] == 0).sum() - stop * 30 / 40) <= 1


def test_an_epoch_of_thousands_of_millions_is_read_from_any_position():
    parts = [6_000_000_000, 3_000_000_000]
    start = 8_999_999_000
    sets, numbers = interleave(parts, start, start + 1000, [0, 0])
    assert Counter(sets.tolist()) == {0: 667, 1: 333}
    assert numbers[sets == 0].tolist() == list(range(6_000_000_000 - 667, 6_000_000_000))
    assert numbers[sets == 1].tolist() == list(range(3_000_000_000 - 333, 3_000_000_000))


def whole(order: EpochOrder) -> list[Entry]:
    return order.entries(range(order.total))


@pytest.mark.parametrize("window", [0, 1, 4, 7, 1000])
def test_an_epoch_has_each_record_once_from_any_position(window):
    counts = [[5, 0, 6], [3], [4, 4]]
    order = EpochOrder(counts, [11, 3, 8], (1, 2), window)
    entries = whole(order)
    shards = [(s, j, n) for s, count in enumerate(counts) for j, n in enumerate(count)]
    assert sorted(entries) == [(s, j, i) for s, j, n in shards for i in range(n)]
    for start in range(23):
        for stop in range(start, 23):
            assert order.entries(range(start, stop)) == entries[start:stop]
    assert EpochOrder(counts, [11, 3, 8], (1, 2), window).entries(range(9, 15)) == entries[9:15]
    assert whole(EpochOrder(counts, [11, 3, 8], (1, 3), window)) != entries
    assert whole(EpochOrder(counts, [11, 3, 8], (2, 2), window)) != entries


def test_a_window_is_shuffled_within_itself_and_without_seed_a_long_epoch_is_in_order():
    plain = whole(EpochOrder([[10] * 10], [100], (0, 0), 0))
    shuffled = whole(EpochOrder([[10] * 10], [100], (0, 0), 30))
    for first in range(0, 100, 30):
        one, other = plain[first : first + 30], shuffled[first : first + 30]
        assert sorted(one) == sorted(other)
        assert one != other
    assert shuffled[:30] != [plain[plain.index(entry) - 30] for entry in shuffled[30:60]]
    order = EpochOrder([[CHUNK], [CHUNK + 5]], [CHUNK, CHUNK + 5], None)
    entries = whole(order)
    assert entries[:CHUNK] == [(0, 0, i) for i in range(CHUNK)]
    assert entries[CHUNK:] == [(1, 0, i) for i in range(CHUNK + 5)]
