"""Which record stands at each position of an epoch: a pure function of seed, epoch and position.

In: counts, weights and seeds. Out: entries (set, shard, record), and who reads which positions.
Never: an open file, or an array as long as the epoch.

An epoch is one sequence of positions, the same for any number of ranks and workers. A global batch
takes the next positions of it; each rank takes its part of the global batch, and its workers take
its batches in turns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vlmtune.data.shard_passes import ShardPasses, generator
from vlmtune.errors import UserError

_SETS, _SHARDS, _WINDOW = range(3)  # each purpose has separate random numbers
CHUNK = 1024  # positions computed at a time where the order is not shuffled


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
            f"each of {world} ranks), got {total}: lower data.batch_size or add data"
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
    batches = (total - start) // size
    offset = consumer.rank * batch_size
    for number in range(consumer.worker, batches, consumer.workers):
        first = start + number * size + offset
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
    sizes = _even(total, world)
    groups = sizes[rank]
    # The first rank has the most groups; its number of batches, rounded up, is that of all.
    most_batches = -(-sizes[0] // batch_size)
    return _even(groups, min(groups, most_batches))


def validation_ranges(total: int, batch_size: int, consumer: Consumer) -> Iterator[range]:
    """Yields the positions of each batch of a consumer; all consumers together cover each once.

    Example:
        >>> [list(validation_ranges(9, 2, Consumer(1, 2, worker, 2))) for worker in (0, 1)]
        [[range(5, 7), range(8, 9)], [range(7, 8)]]
    """
    sizes = validation_batches(total, batch_size, consumer.world, consumer.rank)
    groups_of_ranks = _even(total, consumer.world)
    first = sum(groups_of_ranks[: consumer.rank])
    for number, size in enumerate(sizes):
        if number % consumer.workers == consumer.worker:
            yield range(first, first + size)
        first += size


def _even(total: int, parts: int) -> list[int]:
    """Cuts `total` into `parts` that differ by one at most, larger ones first."""
    size, larger = divmod(total, parts)
    return [size + (part < larger) for part in range(parts)]


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Cuts `total` in proportion to `weights` into whole numbers (largest remainders).

    Example:
        >>> apportion(10, [3.0, 3.0, 1.0])
        [4, 4, 2]
    """
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    # Rounded down these are too few; the sets that lost most by it get one each.
    parts = [int(value) for value in exact]

    def order(number: int) -> tuple[float, int]:
        return parts[number] - exact[number], number

    largest_remainders = sorted(range(len(parts)), key=order)
    missing = total - sum(parts)
    for number in largest_remainders[:missing]:
        parts[number] += 1
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
    left = np.arange(stop - start)  # positions that the sets before leave
    rest = sum(parts)
    for number, (part, phase) in enumerate(zip(parts, phases, strict=True)):
        if part == 0:
            continue
        # Whole numbers of any size for the first position, small ones for the distances from it.
        whole, remainder = divmod(start * part + phase, rest)
        distances = np.arange(len(left) + 1)
        before = (remainder + distances * part) // rest
        mine = before[1:] > before[:-1]  # the count grows at the positions of this set
        taken = left[mine]
        sets[taken] = number
        numbers[taken] = whole + before[:-1][mine]
        left = left[~mine]
        start -= whole
        rest -= part
    return sets, numbers


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
        self._parts = list(parts)
        self._key = key
        self._shuffled = key is not None and window > 1
        self._window = window if self._shuffled else CHUNK
        self._passes: list[ShardPasses | None] = []
        for number, count in enumerate(counts):
            passes = None  # a rendered set has no shards to pass over
            if count is not None:
                set_key = None if key is None else (*key, _SHARDS, number)
                passes = ShardPasses(count, set_key)
            self._passes.append(passes)
        self._phases = [0] * len(parts)
        if key is not None:
            rng = generator(*key, _SETS)
            # A phase is below the number of positions that the sets before leave: random, so that
            # a set does not begin every epoch.
            rests = np.cumsum(self._parts[::-1])[::-1]
            for number, rest in enumerate(rests.tolist()):
                phase = rng.integers(max(rest, 1))
                self._phases[number] = int(phase)
        # A batch lies in two windows at most.
        self._entries = lru_cache(2)(self._window_entries)

    def entries(self, positions: range) -> list[Entry]:
        """Returns what stands at consecutive positions.

        Example:
            >>> [entry.record for entry in EpochOrder([[3]], [3], None).entries(range(1, 3))]
            [1, 2]
        """
        entries: list[Entry] = []
        position = positions.start
        while position < positions.stop:
            number, offset = divmod(position, self._window)
            last = min(self._window, offset + positions.stop - position)
            rows = self._entries(number)[offset:last]
            entries += [Entry(*row) for row in rows.tolist()]
            position = number * self._window + last
        return entries

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
        sets = rows[:, 0]
        shards = rows[:, 1]
        # One number for a set and a shard: numpy sorts numbers far faster than rows.
        width = int(shards.max(initial=0)) + 1
        numbers = sets * width + shards
        distinct, first = np.unique(numbers, return_index=True)
        in_order = distinct[np.argsort(first)]
        return [divmod(number, width) for number in in_order.tolist()]

    def _window_entries(self, number: int) -> np.ndarray:
        """The entries of a window, (n, 3)."""
        first = number * self._window
        last = min(first + self._window, self.total)
        if self._key is None:
            # Evaluation: one set after the other, in the order of the files.
            positions = np.arange(first, last)
            ends = np.cumsum(self._parts)
            sets = np.searchsorted(ends, positions, side="right")
            starts = ends - self._parts
            numbers = positions - starts[sets]
        else:
            sets, numbers = interleave(self._parts, first, last, self._phases)
            if self._shuffled:
                rng = generator(*self._key, _WINDOW, number)
                shuffle = rng.permutation(last - first)
                sets = sets[shuffle]
                numbers = numbers[shuffle]
        entries = np.zeros((last - first, 3), np.int64)
        entries[:, 0] = sets
        for number_of_set in np.unique(sets).tolist():
            mine = sets == number_of_set
            passes = self._passes[number_of_set]
            if passes is None:
                # Rendered groups come in the order in which they are rendered.
                entries[mine, 2] = np.sort(numbers[mine])
                continue
            shards, records = passes.locate(numbers[mine])
            entries[mine, 1] = shards
            entries[mine, 2] = records
        return entries
