"""Which record each rank and worker reads at each position: a pure function of seed and epoch.

In: counts and seeds. Out: positions and ranges of records; `stream` shuffles within a buffer.
Never: an open file.

The records of one epoch are a sequence. Each rank takes consecutive positions of it, cut into
batches that its workers take in turns: batch b of a rank comes from worker `b % workers`.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from vlmtune.errors import UserError


@dataclass(frozen=True)
class Consumer:
    """One reader: worker `worker` of `workers` on rank `rank` of `world`."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1


@dataclass(frozen=True)
class EpochSlice:
    """A consumer's consecutive positions: the first, its batch sizes, the length of the epoch."""

    start: int
    batches: tuple[int, ...]
    total: int

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.start + sum(self.batches)


@dataclass(frozen=True)
class ShardRange:
    """Records `first` to `last` (exclusive) of shard number `shard`."""

    shard: int
    first: int
    last: int


def train_batches(total: int, batch_size: int, world: int) -> int:
    """Returns how many full batches each rank sees in an epoch of `total` groups.

    A rest smaller than `batch_size` x `world` is left out, other groups in every epoch.

    Example:
        >>> train_batches(total=17, batch_size=2, world=4)
        2
    """
    count = total // (batch_size * world)
    if count == 0:
        raise UserError(
            f"expected at least {batch_size * world} groups an epoch ({batch_size} in a batch on "
            f"each of {world} ranks), got {total}: lower batch_size or add data"
        )
    return count


def train_slice(total: int, batch_size: int, consumer: Consumer) -> EpochSlice:
    """Returns a consumer's slice of a training epoch; every rank has as many full batches.

    Example:
        >>> train_slice(17, 2, Consumer(rank=1, world=2))
        EpochSlice(start=8, batches=(2, 2, 2, 2), total=16)
    """
    sizes = [batch_size] * train_batches(total, batch_size, consumer.world)
    per_rank = sum(sizes)
    return _worker_slice(consumer.rank * per_rank, sizes, per_rank * consumer.world, consumer)


def validation_batches(total: int, batch_size: int, world: int, rank: int) -> list[int]:
    """Returns the batch sizes of one rank if every one of `total` groups is seen once.

    Ranks differ by one group at most. A rank with enough groups has as many batches as the others,
    some of them smaller: ranks that wait for each other at every batch must not hang.

    Example:
        >>> [validation_batches(9, 2, 2, rank) for rank in (0, 1)]
        [[2, 2, 1], [2, 1, 1]]
    """
    if total < world:
        raise UserError(
            f"expected at least {world} groups to evaluate on {world} ranks, got {total}: "
            "use fewer devices or more data"
        )
    groups = _even(total, world)[rank]
    count = min(groups, -(-_even(total, world)[0] // batch_size))
    return _even(groups, count)


def validation_slice(total: int, batch_size: int, consumer: Consumer) -> EpochSlice:
    """Returns a consumer's slice of an evaluation; all slices together cover each group once."""
    sizes = validation_batches(total, batch_size, consumer.world, consumer.rank)
    start = sum(_even(total, consumer.world)[: consumer.rank])
    return _worker_slice(start, sizes, total, consumer)


def _even(total: int, parts: int) -> list[int]:
    """Cuts `total` into `parts` that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _worker_slice(start: int, sizes: Sequence[int], total: int, consumer: Consumer) -> EpochSlice:
    by_worker = [sizes[worker :: consumer.workers] for worker in range(consumer.workers)]
    before = sum(sum(batches) for batches in by_worker[: consumer.worker])
    return EpochSlice(start + before, tuple(by_worker[consumer.worker]), total)


def generator(*key: int) -> np.random.Generator:
    """Returns a generator for a key, e.g. (seed, epoch, purpose, ...); each key has one."""
    return np.random.default_rng(np.random.SeedSequence(key))


def shard_ranges(
    counts: Sequence[int], start: int, stop: int, key: tuple[int, ...] | None
) -> Iterator[ShardRange]:
    """Yields what to read for the positions `start` to `stop` of one shard set.

    One pass takes all shards end to end and is `sum(counts)` long; passes follow each other. With a
    key, each pass shuffles the shards and starts at a random record (going round), so that no
    record, even of a single shard, is left out at the end of every epoch. `counts` are the records
    of each shard.

    Example:
        >>> list(shard_ranges([3, 2], 1, 4, None))
        [ShardRange(shard=0, first=1, last=3), ShardRange(shard=1, first=0, last=1)]
    """
    total = sum(counts)
    while start < stop:
        number, offset = divmod(start, total)
        length = min(stop - start, total - offset)
        order, rotation = list(range(len(counts))), 0
        if key is not None:
            rng = generator(*key, number)
            order = rng.permutation(len(counts)).tolist()
            rotation = int(rng.integers(total))
        ends = list(accumulate(counts[shard] for shard in order))
        start += length
        while length:
            position = (rotation + offset) % total
            index = bisect_right(ends, position)
            shard = order[index]
            first = position - (ends[index] - counts[shard])
            last = min(counts[shard], first + length)
            yield ShardRange(shard, first, last)
            offset, length = offset + last - first, length - (last - first)


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Cuts `total` in proportion to `weights` into whole numbers (largest remainders).

    Example:
        >>> apportion(10, [1.0, 1.0, 2.0])
        [3, 2, 5]
    """
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def mixture(parts: Sequence[int], key: tuple[int, ...] | None) -> np.ndarray:
    """Returns the number of the shard set at each position of an epoch.

    Set i has `parts[i]` positions, in random order or, without a key, one set after the other.

    Example:
        >>> mixture([2, 1], None).tolist()
        [0, 0, 1]
    """
    sets = np.repeat(np.arange(len(parts), dtype=np.uint16), parts)
    if key is not None and len(parts) > 1:
        generator(*key).shuffle(sets)
    return sets
