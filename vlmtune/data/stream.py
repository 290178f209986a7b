"""The groups one consumer sees in one epoch: a pure function of seed, epoch, rank and worker.

Shard sets come in, batches of groups and lines about damaged records go out. It never collates, and
never shifts a position: skipping k batches gives exactly the rest, damage or not.
"""

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from vlmtune.data.rendered import RenderedRecord, RenderedSet
from vlmtune.data.sample_order import (
    Consumer,
    EpochSlice,
    apportion,
    generator,
    mixture,
    shard_ranges,
    train_batches,
    train_slice,
    validation_batches,
    validation_slice,
)
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet, decode_group
from vlmtune.data.tar_records import Damage, RawRecord, read_records
from vlmtune.errors import UserError
from vlmtune.types import Group

T = TypeVar("T")
GroupBatch = tuple[list[Group], tuple[str, ...]]
Item = RawRecord | RenderedRecord | Damage

# Each purpose has separate random numbers.
_MIXTURE, _SHARDS, _BUFFER = range(3)
_EVALUATION = 1 << 30  # the epoch of rendered groups that training never sees


@dataclass(frozen=True)
class GroupStream:
    """Reads shard sets in batches of groups.

    Training mixes the sets: each set gives a fraction of the epoch in proportion to `weight x
    records`, at positions shuffled in each epoch. A set that is too small starts over. Every rank
    gets as many full batches. Evaluation takes each record once, in order.

    An unusable record is reported. In training the consumer's next good record replaces it (going
    round to its first).

    Attributes:
        sets: Where to read.
        batch_size: Groups in a batch.
        train: Training or evaluation.
        total: Groups in a training epoch over all ranks; None for the sum of the sets.
        seed: Seed of every order.
        buffer: Undecoded records in the shuffle buffer of a training consumer; 0 for none.
        max_damaged: Fraction of a consumer's records that may be damaged (rounded up) before
            reading fails.
        images: Whether images are read and decoded.
        stored: If they are not: ids of images with stored features. A record with another image
            counts as damaged. None for all.
    """

    sets: tuple[ShardSet, ...]
    batch_size: int
    train: bool = True
    total: int | None = None
    seed: int = 0
    buffer: int = 1000
    max_damaged: float = 0.01
    images: bool = True
    stored: Container[str] | None = None

    def length(self, rank: int, world: int) -> int:
        """Returns the number of batches one rank sees in an epoch."""
        if self.train:
            return train_batches(self._total(), self.batch_size, world)
        return len(validation_batches(self._total(), self.batch_size, world, rank))

    @property
    def rendered(self) -> bool:
        """Whether all groups are rendered, so that the number of workers changes no batch."""
        return all(isinstance(data, RenderedSet) for data in self.sets)

    def batches(
        self, epoch: int = 0, consumer: Consumer | None = None, skip: int = 0
    ) -> Iterator[GroupBatch]:
        """Yields a consumer's batches: the groups, and a line for each new damaged record.

        In training the first `skip` batches are skipped, undecoded.
        """
        consumer = consumer or Consumer()
        if not self.train:
            yield from self._evaluation(validation_slice(self._total(), self.batch_size, consumer))
            return
        if self.rendered:
            yield from self._rendered(epoch, consumer, skip)
            return
        positions = train_slice(self._total(), self.batch_size, consumer)
        log = _DamageLog(positions.stop - positions.start, self.max_damaged)
        groups = self._replacing_damage(
            positions, epoch, consumer, sum(positions.batches[:skip]), log
        )
        for size in positions.batches[skip:]:
            yield list(islice(groups, size)), log.drain()

    def _total(self) -> int:
        if self.train and self.total is not None:
            return self.total
        return sum(data.manifest.records for data in self.sets)

    def _rendered(self, epoch: int, consumer: Consumer, skip: int) -> Iterator[GroupBatch]:
        """Batches whose positions do not depend on the number of workers: nothing is read ahead."""
        count = train_batches(self._total(), self.batch_size, consumer.world)
        sets = self._set_numbers(count * self.batch_size * consumer.world, epoch)
        for batch in range(consumer.worker, count, consumer.workers)[skip:]:
            start = (consumer.rank * count + batch) * self.batch_size
            chosen = sets[start : start + self.batch_size]
            groups = {}
            for number in np.unique(chosen).tolist():
                first, size = (int(np.count_nonzero(x == number)) for x in (sets[:start], chosen))
                data = self.sets[number]
                assert isinstance(data, RenderedSet)
                groups[number] = iter(data.groups(epoch, first, size))
            yield [next(groups[number]) for number in chosen.tolist()], ()

    def _evaluation(self, positions: EpochSlice) -> Iterator[GroupBatch]:
        log = _DamageLog(positions.stop - positions.start, self.max_damaged)
        decoded = (self._decode(item, log) for item in self._items(positions, None))
        groups = (group for group in decoded if group is not None)
        # One batch is held back, so that damage after the last group is still reported.
        held: list[Group] = []
        for size in positions.batches:
            batch = list(islice(groups, size))
            if held and batch:
                yield held, log.drain()
            held = batch or held
        if held:
            yield held, log.drain()

    def _replacing_damage(
        self, positions: EpochSlice, epoch: int, consumer: Consumer, skip: int, log: "_DamageLog"
    ) -> Iterator[Group]:
        missing = 0
        for item in islice(self._shuffled(positions, epoch, consumer), skip, None):
            missing += 1
            group = self._decode(item, log)
            if group is not None:
                yield from [group] * missing
                missing = 0
        if missing:
            from_the_start = self._shuffled(positions, epoch, consumer)
            good = (group for item in from_the_start if (group := self._decode(item)) is not None)
            group = next(good, None)
            if group is None:
                raise log.error()
            yield from [group] * missing

    def _shuffled(self, positions: EpochSlice, epoch: int, consumer: Consumer) -> Iterator[Item]:
        rng = generator(self.seed, epoch, _BUFFER, consumer.rank, consumer.worker)
        return buffer_shuffle(self._items(positions, epoch), self.buffer, rng)

    def _items(self, positions: EpochSlice, epoch: int | None) -> Iterator[Item]:
        """Yields the undecoded records at `positions`; `epoch` None means in order."""
        sets = self._set_numbers(positions.total, epoch)
        mine = sets[positions.start : positions.stop]
        readers = []
        for number, data in enumerate(self.sets):
            start = int(np.count_nonzero(sets[: positions.start] == number))
            stop = start + int(np.count_nonzero(mine == number))
            key = None if epoch is None else (self.seed, epoch, _SHARDS, number)
            readers.append(_read_set(data, start, stop, key, self.images))
        for number in mine:
            yield next(readers[number])

    def _set_numbers(self, total: int, epoch: int | None) -> np.ndarray:
        """The number of the set at each position of the epoch."""
        if epoch is None:
            return mixture([data.manifest.records for data in self.sets], None)
        weights = [data.weight * data.manifest.records for data in self.sets]
        return mixture(apportion(total, weights), (self.seed, epoch, _MIXTURE))

    def _decode(self, item: Item, log: "_DamageLog | None" = None) -> Group | None:
        """Returns the group, or None if the record is damaged, which goes into `log`."""
        if isinstance(item, RenderedRecord):
            return item.group()
        damage = item
        if isinstance(item, RawRecord):
            try:
                group = decode_group(item, self.images)
                for image in group.image_ids:
                    if self.stored is not None and image not in self.stored:
                        raise RecordError(f"image {image} has no stored features")
                return group
            except RecordError as error:
                damage = Damage(item.shard, item.key, str(error))
        if log is not None:
            log.note(str(damage))
        return None


class _DamageLog:
    """Counts one consumer's damaged records in one epoch, and fails when there are too many."""

    def __init__(self, records: int, max_damaged: float) -> None:
        self.records, self.limit = records, math.ceil(max_damaged * records)
        self.count, self.reported = 0, 0
        self.known: dict[str, None] = {}

    def note(self, line: str) -> None:
        self.count += 1
        self.known.setdefault(line)
        if self.count > self.limit:
            raise self.error()

    def drain(self) -> tuple[str, ...]:
        """Returns the lines that are new since the last call."""
        fresh = tuple(self.known)[self.reported :]
        self.reported = len(self.known)
        return fresh

    def error(self) -> UserError:
        first = next(iter(self.known), "none was read")
        return UserError(
            f"expected at most {self.limit} damaged of {self.records} records, got {self.count} "
            f"({first}): build the shards again or raise max_damaged"
        )


def _read_set(
    data: ShardSet, start: int, stop: int, key: tuple[int, ...] | None, images: bool
) -> Iterator[Item]:
    if isinstance(data, RenderedSet):
        epoch = _EVALUATION if key is None else key[1]
        yield from (RenderedRecord(data, epoch, number) for number in range(start, stop))
        return
    for part in shard_ranges(data.counts, start, stop, key):
        yield from read_records(data.files[part.shard], part.first, part.last, images)


def buffer_shuffle(items: Iterable[T], size: int, rng: np.random.Generator) -> Iterator[T]:
    """Yields all items, each taken at random from a buffer of `size` (0 or 1: in order).

    Example:
        >>> sorted(buffer_shuffle("abcd", 3, np.random.default_rng(0)))
        ['a', 'b', 'c', 'd']
    """
    buffer: list[T] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        if not buffer:
            yield item
            continue
        slot = int(rng.integers(len(buffer)))
        buffer[slot], item = item, buffer[slot]
        yield item
    for slot in rng.permutation(len(buffer)).tolist():
        yield buffer[slot]


def check_sets(sets: Sequence[ShardSet], name: str) -> tuple[ShardSet, ...]:
    """Returns the sets, with their manifests read."""
    if not sets:
        raise UserError(f"expected at least one shard set in {name}, got none: name a folder")
    for data in sets:
        _ = data.manifest
    return tuple(sets)
