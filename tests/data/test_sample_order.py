from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.refusals import refused
from vlmtune.data import sample_order


def consumers(world: int, workers: int) -> list[sample_order.Consumer]:
    return [
        sample_order.Consumer(r, world, w, workers) for r in range(world) for w in range(workers)
    ]


def records(parts: object) -> list[tuple[int, int]]:
    return [(s.shard, i) for s in parts for i in range(s.first, s.last)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_training_slices_tile_the_epoch_in_full_batches(world: int, workers: int) -> None:
    slices = [sample_order.train_slice(53, 4, c) for c in consumers(world, workers)]
    assert slices[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(slices))
    assert slices[-1].stop == slices[0].total == 53 // (4 * world) * 4 * world
    assert {size for part in slices for size in part.batches} == {4}
    for rank in range(world):
        mine = slices[rank * workers : (rank + 1) * workers]
        assert sum(len(part.batches) for part in mine) == 53 // (4 * world)
        # in turns: worker w has batches w, w + workers, ...
        counts = [len(part.batches) for part in mine]
        assert counts == sorted(counts, reverse=True)
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("total", [3, 4, 10, 53])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 3, 7])
def test_evaluation_slices_tile_the_epoch_exactly(total: int, world: int, workers: int) -> None:
    slices = [sample_order.validation_slice(total, 4, c) for c in consumers(world, workers)]
    assert (slices[0].start, slices[-1].stop) == (0, total)
    assert all(a.stop == b.start for a, b in pairwise(slices))
    assert all(1 <= size <= 4 for part in slices for size in part.batches)
    assert (
        len({len(sample_order.validation_batches(total, 4, world, rank)) for rank in range(world)})
        == 1
    )


def test_too_few_groups_are_an_error() -> None:
    with refused("at least 8 groups"):
        sample_order.train_slice(7, 4, sample_order.Consumer(world=2))
    with refused("at least 3 groups"):
        sample_order.validation_slice(2, 4, sample_order.Consumer(world=3))


@pytest.mark.parametrize("counts", [[5], [3, 0, 4], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("key", [None, (0, 0), (0, 1)])
def test_each_pass_reads_every_record_once(counts: list[int], key: tuple[int, ...] | None) -> None:
    total = sum(counts)
    everything = {(shard, i) for shard, count in enumerate(counts) for i in range(count)}
    sequence = records(sample_order.shard_ranges(counts, 0, 3 * total, key))
    for number in range(3):
        assert set(sequence[number * total : (number + 1) * total]) == everything
    # Any two cuts of the sequence agree with the whole.
    for start, stop in [(0, 1), (2, 2 * total + 1), (total - 1, total + 1)]:
        assert records(sample_order.shard_ranges(counts, start, stop, key)) == sequence[start:stop]


def test_passes_and_epochs_differ_and_repeat() -> None:
    counts = [4, 4, 4, 4]
    seeds = [(0, 0), (0, 1), (1, 0), (1, 1)]
    sequences = [records(sample_order.shard_ranges(counts, 0, 32, seed)) for seed in seeds]
    assert len({tuple(sequence) for sequence in sequences}) == 4
    assert sequences[0][:16] != sequences[0][16:]
    assert sequences[0] == records(sample_order.shard_ranges(counts, 0, 32, (0, 0)))


def test_one_shard_does_not_always_lose_its_tail() -> None:
    lost = {records(sample_order.shard_ranges([10], 9, 10, (0, epoch)))[0] for epoch in range(200)}
    assert len(lost) == 10


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], [0.1, 5.0, 3.3], [1e-9, 1.0]])
def test_apportioned_parts_are_exact_and_fair(weights: list[float]) -> None:
    for total in (0, 1, 7, 100):
        parts = sample_order.apportion(total, weights)
        assert sum(parts) == total
        exact = np.array(weights) / sum(weights) * total
        assert np.abs(np.array(parts) - exact).max() < 1


def test_mixture_has_exact_parts_in_another_order_each_time() -> None:
    first, second = sample_order.mixture([30, 10], (0, 0)), sample_order.mixture([30, 10], (0, 1))
    assert Counter(first.tolist()) == Counter(second.tolist()) == {0: 30, 1: 10}
    assert first.tolist() != second.tolist()
    assert first.tolist() == sample_order.mixture([30, 10], (0, 0)).tolist()
    assert sample_order.mixture([2, 2], None).tolist() == [0, 0, 1, 1]
