"""Which record stands at each position of an epoch: a pure function of seed, epoch and position.

In: counts, weights and seeds. Out: entries (set, shard, record), and who reads which positions.
Never: an open file, or an array as long as the epoch.

An epoch is one sequence of positions, the same for any number of ranks and workers. A global batch
takes the next positions of it; each rank takes its part of the global batch, and its workers take
its batches in turns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vlmtune.errors import UserError

# Each purpose has separate random numbers.
_SETS, _SHARDS, _WINDOW = range(3)
CHUNK = 1024  # positions computed at a time where the order is not shuffled
PASSES = 8  # passes of a set whose order of shards is kept


@dataclass(frozen=True)
class Consumer:
    """One reader: worker `worker` of `workers` on rank `rank` of `world`."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1


class Entry(NamedTuple):
    """What stands at a position: record `record` of shard `shard` of set `set`, all by number."""

    set: int
    shard: int
    record: int


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


def train_ranges(
    total: int, batch_size: int, consumer: Consumer, start: int = 0
) -> Iterator[range]:
    """Yields the positions of each batch of a consumer, from position `start` of an epoch on.

    Global batch g has the positions from `start` + g x `batch_size` x world on. Rank r reads its
    r-th part, by worker g % workers.

    Example:
        >>> list(train_ranges(17, 2, Consumer(rank=1, world=2), start=3))
        [range(5, 7), range(9, 11), range(13, 15)]
    """
    size = batch_size * consumer.world
    for number in range(consumer.worker, (total - start) // size, consumer.workers):
        first = start + number * size + consumer.rank * batch_size
        yield range(first, first + batch_size)


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


def validation_ranges(total: int, batch_size: int, consumer: Consumer) -> Iterator[range]:
    """Yields the positions of each batch of a consumer; all consumers together cover each once.

    Example:
        >>> [list(validation_ranges(9, 2, Consumer(1, 2, worker, 2))) for worker in (0, 1)]
        [[range(5, 7), range(8, 9)], [range(7, 8)]]
    """
    sizes = validation_batches(total, batch_size, consumer.world, consumer.rank)
    first = sum(_even(total, consumer.world)[: consumer.rank])
    for number, size in enumerate(sizes):
        if number % consumer.workers == consumer.worker:
            yield range(first, first + size)
        first += size


def _even(total: int, parts: int) -> list[int]:
    """Cuts `total` into `parts` that differ by one at most, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def generator(*key: int) -> np.random.Generator:
    """Returns a generator for a key, e.g. (seed, epoch, purpose, ...); each key has one."""
    return np.random.default_rng(np.random.SeedSequence(key))


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


def interleave(
    parts: Sequence[int], start: int, stop: int, phases: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    r"""Returns the set at each position from `start` to `stop`, and which of the set it is.

    Set i has `parts[i]` of the $n$ positions, evenly spread: of the first $q$ positions that sets
    before it leave, it has $\lfloor (q\, \mathrm{parts}_i + \mathrm{phases}_i) / m \rfloor$, where
    $m$ positions are left in all and $0 \le \mathrm{phases}_i < m$.

    Example:
        >>> sets, numbers = interleave([4, 2], 0, 6, [3, 0])
        >>> sets.tolist(), numbers.tolist()
        ([0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 1, 3])
    """
    sets = np.zeros(stop - start, np.int64)
    numbers = np.zeros(stop - start, np.int64)
    left, rest = np.arange(stop - start), sum(parts)
    for number, (part, phase) in enumerate(zip(parts, phases, strict=True)):
        if part == 0:
            continue
        # Whole numbers of any size for the first position, small ones for the distances from it.
        whole, remainder = divmod(start * part + phase, rest)
        before = (remainder + np.arange(len(left) + 1) * part) // rest
        mine = before[1:] > before[:-1]
        sets[left[mine]] = number
        numbers[left[mine]] = whole + before[:-1][mine]
        left, start, rest = left[~mine], start - whole, rest - part
    return sets, numbers


class ShardPasses:
    """Passes over the shards of a set, one after the other; each reads every record once.

    With a key, each pass shuffles the shards and starts at a random record (going round), so that
    no record, even of a single shard, is left out at the end of every epoch.

    Args:
        counts: Records in each shard.
        key: Seeds the passes; None for the order on disk.
    """

    def __init__(self, counts: Sequence[int], key: tuple[int, ...] | None) -> None:
        self._counts, self._key = np.asarray(counts, np.int64), key
        self._total = int(self._counts.sum())
        self._known: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns shards and records of numbers, which count on from one pass to the next.

        Example:
            >>> shards, records = ShardPasses([3, 2], None).locate(np.array([2, 3, 5]))
            >>> shards.tolist(), records.tolist()
            ([0, 1, 0], [2, 0, 0])
        """
        shards, records = np.empty_like(numbers), np.empty_like(numbers)
        passes = numbers // self._total
        for number in np.unique(passes).tolist():
            order, ends, rotation = self._pass(number)
            mine = passes == number
            at = (numbers[mine] + rotation) % self._total
            index = np.searchsorted(ends, at, side="right")
            shards[mine] = order[index]
            records[mine] = at - (ends[index] - self._counts[order[index]])
        return shards, records

    def _pass(self, number: int) -> tuple[np.ndarray, np.ndarray, int]:
        """The order of the shards, where each ends in it, and the record to start at."""
        if number not in self._known:
            order, rotation = np.arange(len(self._counts)), 0
            if self._key is not None:
                rng = generator(*self._key, number)
                order, rotation = rng.permutation(len(order)), int(rng.integers(self._total))
            while len(self._known) >= PASSES:
                self._known.pop(next(iter(self._known)))
            self._known[number] = order, np.cumsum(self._counts[order]), rotation
        return self._known[number]


class EpochOrder:
    """The records of one epoch by position.

    Sets are mixed evenly. Then every `window` consecutive positions are shuffled among themselves.
    Groups of a set without shards (None) are numbered by position, as they are rendered: shuffling
    them would change nothing.

    Args:
        counts: Records in each shard of each set, or None for a set that is rendered.
        parts: Positions of each set in the epoch.
        key: Seed and epoch; None for the order on disk, one set after the other.
        window: Positions that are shuffled among themselves; 0 or 1 for none.
    """

    def __init__(
        self,
        counts: Sequence[Sequence[int] | None],
        parts: Sequence[int],
        key: tuple[int, int] | None,
        window: int = 0,
    ) -> None:
        self.total = sum(parts)
        self._parts, self._key = list(parts), key
        self._shuffled = key is not None and window > 1
        self._window = window if self._shuffled else CHUNK
        self._passes: list[ShardPasses | None] = []
        for number, count in enumerate(counts):
            # A rendered set has no shards to pass over.
            passes = None
            if count is not None:
                passes = ShardPasses(count, key and (*key, _SHARDS, number))
            self._passes.append(passes)
        self._phases = [0] * len(parts)
        if key is not None:
            rng, rests = generator(*key, _SETS), np.cumsum(self._parts[::-1])[::-1].tolist()
            self._phases = [int(rng.integers(max(rest, 1))) for rest in rests]
        self._known: dict[int, np.ndarray] = {}

    def entries(self, positions: range) -> list[Entry]:
        """Returns what stands at consecutive positions.

        Example:
            >>> [entry.record for entry in EpochOrder([[3]], [3], None).entries(range(1, 3))]
            [1, 2]
        """
        rows: list[Entry] = []
        position = positions.start
        while position < positions.stop:
            number, offset = divmod(position, self._window)
            last = min(self._window, offset + positions.stop - position)
            rows += [Entry(*row) for row in self._entries(number)[offset:last].tolist()]
            position = number * self._window + last
        return rows

    def coming_shards(self, position: int) -> list[tuple[int, int]]:
        """Returns set and shard of all that stands from a position to the end of the next window.

        Each shard comes once, in the order in which it is first needed.

        Example:
            >>> EpochOrder([[3, 2], [4]], [5, 4], None).coming_shards(1)
            [(0, 0), (0, 1), (1, 0)]
        """
        number, offset = divmod(position, self._window)
        rows = self._entries(number)[offset:]
        if (number + 1) * self._window < self.total:
            rows = np.concatenate([rows, self._entries(number + 1)])
        width = int(rows[:, 1].max(initial=0)) + 1
        numbers, first = np.unique(rows[:, 0] * width + rows[:, 1], return_index=True)
        return [divmod(x, width) for x in numbers[np.argsort(first)].tolist()]

    def _entries(self, number: int) -> np.ndarray:
        """The entries of a window, (n, 3); a batch may need two of them."""
        if number not in self._known:
            while len(self._known) >= 2:
                self._known.pop(next(iter(self._known)))
            self._known[number] = self._window_entries(number)
        return self._known[number]

    def _window_entries(self, number: int) -> np.ndarray:
        first = number * self._window
        last = min(first + self._window, self.total)
        if self._key is None:
            ends, at = np.cumsum(self._parts), np.arange(first, last)
            sets = np.searchsorted(ends, at, side="right")
            numbers = at - (ends - self._parts)[sets]
        else:
            sets, numbers = interleave(self._parts, first, last, self._phases)
            if self._shuffled:
                shuffle = generator(*self._key, _WINDOW, number).permutation(last - first)
                sets, numbers = sets[shuffle], numbers[shuffle]
        entries = np.zeros((last - first, 3), np.int64)
        entries[:, 0] = sets
        for number_of_set in np.unique(sets).tolist():
            mine, passes = sets == number_of_set, self._passes[number_of_set]
            if passes is None:
                entries[mine, 2] = np.sort(numbers[mine])
            else:
                entries[mine, 1], entries[mine, 2] = passes.locate(numbers[mine])
        return entries
