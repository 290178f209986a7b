"""Passes over the shards of a set, each in an order of its own: a pure function of a key.

In: counts of records and a key. Out: the shard and the record of each number. Never: an open file.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

PASSES = 8  # passes of a set whose order of shards is kept


class ShardPasses:
    """Passes over the shards of a set, one after the other; each reads every record once.

    With a key, each pass shuffles the shards and starts at a random record (going round), so that
    no record, even of a single shard, is left out at the end of every epoch.

    Args:
        counts: Records in each shard.
        key: Seeds the passes; None for the order on disk.
    """

    def __init__(self, counts: Sequence[int], key: tuple[int, ...] | None) -> None:
        self._counts = np.asarray(counts, np.int64)
        self._key = key
        self._total = int(self._counts.sum())
        # A window of a small set spans several passes.
        self._pass = lru_cache(PASSES)(self._new_pass)

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns shards and records of numbers, which count on from one pass to the next.

        Example:
            >>> shards, records = ShardPasses([3, 2], None).locate(np.array([2, 3, 5]))
            >>> shards.tolist(), records.tolist()
            ([0, 1, 0], [2, 0, 0])
        """
        shards = np.empty_like(numbers)
        records = np.empty_like(numbers)
        passes = numbers // self._total
        for number in np.unique(passes).tolist():
            order, ends, rotation = self._pass(number)
            mine = passes == number
            positions = (numbers[mine] + rotation) % self._total
            index = np.searchsorted(ends, positions, side="right")
            shard = order[index]
            starts = ends[index] - self._counts[shard]
            shards[mine] = shard
            records[mine] = positions - starts
        return shards, records

    def _new_pass(self, number: int) -> tuple[np.ndarray, np.ndarray, int]:
        """The order of the shards, where each ends in it, and the record to start at."""
        order = np.arange(len(self._counts))
        rotation = 0
        if self._key is not None:
            rng = generator(*self._key, number)
            order = rng.permutation(len(order))
            # Else the last records of each pass would be those that an epoch leaves out.
            rotation = int(rng.integers(self._total))
        ends = np.cumsum(self._counts[order])
        return order, ends, rotation


def generator(*key: int) -> np.random.Generator:
    """Returns a generator for a key, e.g. (seed, epoch, purpose, ...); each key has one."""
    return np.random.default_rng(np.random.SeedSequence(key))
