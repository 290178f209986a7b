"""Who reads which records, in which order: arithmetic only, a pure function of seed and epoch.

The records of one epoch are a line. It is cut into consecutive pieces, one for each rank, and each
rank's piece into batches that its workers take in turns, so that `batches[b]` of a rank comes from
worker `b % workers` and the workers together give the stream one worker would give a length to.
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
class Piece:
    """A consumer's part of the line.

    Attributes:
        start: Its first place.
        batches: Sizes of the batches it is cut into.
        total: Length of the whole line.
    """

    start: int
    batches: tuple[int, ...]
    total: int

    @property
    def stop(self) -> int:
        """One past the last place."""
        return self.start + sum(self.batches)


@dataclass(frozen=True)
class Segment:
    """Records `first` to `last` (exclusive) of shard number `shard`."""

    shard: int
    first: int
    last: int


def train_batches(total: int, batch_size: int, world: int) -> int:
    """Returns how many full batches each rank sees in an epoch of `total` groups.

    The rest, smaller than `batch_size` x `world`, is left out; which groups that are differs from
    epoch to epoch.

    Raises:
        UserError: There is not even one batch.

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


def train_piece(total: int, batch_size: int, consumer: Consumer) -> Piece:
    """Returns a consumer's part of a training epoch: every rank has equally many full batches.

    Example:
        >>> train_piece(17, 2, Consumer(rank=1, world=2))
        Piece(start=8, batches=(2, 2, 2, 2), total=16)
    """
    sizes = [batch_size] * train_batches(total, batch_size, consumer.world)
    share = sum(sizes)
    return _worker_piece(consumer.rank * share, sizes, share * consumer.world, consumer)


def evaluation_batches(total: int, batch_size: int, world: int, rank: int) -> list[int]:
    """Returns the batch sizes of one rank when every one of `total` groups is seen once.

    The ranks' shares differ by one group at most, and where a rank has enough groups it has as many
    batches as the others (smaller ones), so that ranks that wait for each other at every batch do
    not hang.

    Raises:
        UserError: There are fewer groups than ranks.

    Example:
        >>> [evaluation_batches(9, 2, 2, rank) for rank in (0, 1)]
        [[2, 2, 1], [2, 1, 1]]
    """
    if total < world:
        raise UserError(
            f"expected at least {world} groups to evaluate on {world} ranks, got {total}: "
            "use fewer devices or more data"
        )
    share = _even(total, world)[rank]
    count = min(share, -(-_even(total, world)[0] // batch_size))
    return _even(share, count)


def evaluation_piece(total: int, batch_size: int, consumer: Consumer) -> Piece:
    """Returns a consumer's part of an evaluation: all pieces together cover each group once."""
    sizes = evaluation_batches(total, batch_size, consumer.world, consumer.rank)
    start = sum(_even(total, consumer.world)[: consumer.rank])
    return _worker_piece(start, sizes, total, consumer)


def _even(total: int, parts: int) -> list[int]:
    """Cuts `total` into `parts` that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _worker_piece(start: int, sizes: Sequence[int], total: int, consumer: Consumer) -> Piece:
    mine = [sizes[worker :: consumer.workers] for worker in range(consumer.workers)]
    before = sum(sum(batches) for batches in mine[: consumer.worker])
    return Piece(start + before, tuple(mine[consumer.worker]), total)


def generator(*key: int) -> np.random.Generator:
    """Returns a source of chance of its own for each key, e.g. (seed, epoch, purpose, ...)."""
    return np.random.default_rng(np.random.SeedSequence(key))


def segments(
    counts: Sequence[int], start: int, stop: int, chance: tuple[int, ...] | None
) -> Iterator[Segment]:
    """Yields what to read for the places `start` to `stop` of a set's line.

    One pass lays all shards end to end and is `sum(counts)` long; the line is pass after pass. With
    `chance`, each pass has the shards in another order and begins at another record (going round),
    so that what an epoch leaves out at its end is never always the same, not even with one shard.

    Args:
        counts: Records in each shard.
        start: First place.
        stop: One past the last place.
        chance: Key of the order, or None for the order of `counts`.

    Example:
        >>> list(segments([3, 2], 1, 4, None))
        [Segment(shard=0, first=1, last=3), Segment(shard=1, first=0, last=1)]
    """
    total = sum(counts)
    while start < stop:
        number, offset = divmod(start, total)
        length = min(stop - start, total - offset)
        yield from _pass_segments(counts, offset, length, chance and (*chance, number))
        start += length


def _pass_segments(
    counts: Sequence[int], offset: int, length: int, chance: tuple[int, ...] | None
) -> Iterator[Segment]:
    order, rotation, total = list(range(len(counts))), 0, sum(counts)
    if chance is not None:
        dice = generator(*chance)
        order = dice.permutation(len(counts)).tolist()
        rotation = int(dice.integers(total))
    ends = list(accumulate(counts[shard] for shard in order))
    while length:
        place = (rotation + offset) % total
        at = bisect_right(ends, place)
        shard = order[at]
        first = place - (ends[at] - counts[shard])
        last = min(counts[shard], first + length)
        yield Segment(shard, first, last)
        offset, length = offset + last - first, length - (last - first)


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Cuts `total` in proportion to `weights`, exactly (largest remainders).

    Example:
        >>> shares(10, [1.0, 1.0, 2.0])
        [3, 2, 5]
    """
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def mixture(parts: Sequence[int], chance: tuple[int, ...] | None) -> np.ndarray:
    """Returns for each place of the line the number of its set: `parts[s]` places for set s.

    Args:
        parts: Places of each set.
        chance: Key of the order, or None for one set after the other.

    Example:
        >>> mixture([2, 1], None).tolist()
        [0, 0, 1]
    """
    line = np.repeat(np.arange(len(parts), dtype=np.uint16), parts)
    if chance is not None and len(parts) > 1:
        generator(*chance).shuffle(line)
    return line
