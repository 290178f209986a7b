"""The groups one consumer sees in one epoch: a pure function of seed, epoch, rank and worker."""

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from vlmtune.data.plan import (
    Consumer,
    Piece,
    evaluation_batches,
    evaluation_piece,
    generator,
    mixture,
    segments,
    shares,
    train_batches,
    train_piece,
)
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import Damage, RawRecord, ShardSet, decode_group, read_records
from vlmtune.errors import UserError
from vlmtune.types import Group

T = TypeVar("T")
GroupBatch = tuple[list[Group], tuple[str, ...]]

# What a source of chance is for; each purpose draws from a stream of its own.
_MIXTURE, _SHARDS, _BUFFER = range(3)


@dataclass(frozen=True)
class GroupStream:
    """Reads shard sets in batches of groups.

    In training the sets are mixed: of the groups of an epoch, each set gives exactly the share
    `weight x records` asks for, in places drawn anew each epoch, and starts over where its share is
    larger than the set. Every rank gets equally many full batches. In evaluation each record comes
    once, in order.

    A record that cannot be used is reported and, in training, its place is filled with the
    consumer's next good record (going round to its first). Places are never shifted, so skipping k
    batches gives exactly the rest of the stream, damage or not.

    Attributes:
        sets: Where to read.
        batch_size: Groups in a batch.
        train: Training or evaluation.
        total: Groups in a training epoch over all ranks; None for the sum of the sets.
        seed: Seed of every order.
        buffer: Undecoded records the shuffle buffer of a training consumer holds; 0 for none.
        max_damaged: Fraction of a consumer's records that may be damaged (rounded up) before
            reading fails.
        images: Whether images are read and decoded.
        stored: Where images are not read: ids of the images whose features are at hand; a record
            with another image counts as damaged. None where nothing is known.
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
        """Returns the number of batches one rank sees in an epoch.

        Raises:
            UserError: There are too few groups for all ranks, or a set cannot be read.
        """
        if self.train:
            return train_batches(self._total(), self.batch_size, world)
        return len(evaluation_batches(self._total(), self.batch_size, world, rank))

    def batches(
        self, epoch: int = 0, consumer: Consumer | None = None, skip: int = 0
    ) -> Iterator[GroupBatch]:
        """Yields a consumer's batches: the groups, and a line for each damaged record met.

        Args:
            epoch: Number of the epoch.
            consumer: Who reads; None for the only reader.
            skip: Batches of this consumer to pass over, undecoded (training only).

        Raises:
            UserError: More records are damaged than `max_damaged` allows.
        """
        consumer = consumer or Consumer()
        if not self.train:
            yield from self._evaluation(evaluation_piece(self._total(), self.batch_size, consumer))
            return
        piece = train_piece(self._total(), self.batch_size, consumer)
        ledger = _Ledger(piece.stop - piece.start, self.max_damaged)
        groups = self._filled(piece, epoch, consumer, sum(piece.batches[:skip]), ledger)
        for size in piece.batches[skip:]:
            yield list(islice(groups, size)), ledger.drain()

    def _total(self) -> int:
        if self.train and self.total is not None:
            return self.total
        return sum(data.manifest.records for data in self.sets)

    def _evaluation(self, piece: Piece) -> Iterator[GroupBatch]:
        ledger = _Ledger(piece.stop - piece.start, self.max_damaged)
        decoded = (self._decode(item, ledger) for item in self._items(piece, None))
        groups = (group for group in decoded if group is not None)
        # One batch is held back, so that damage met after the last group is still reported.
        held: list[Group] = []
        for size in piece.batches:
            batch = list(islice(groups, size))
            if held and batch:
                yield held, ledger.drain()
            held = batch or held
        if held:
            yield held, ledger.drain()

    def _filled(
        self, piece: Piece, epoch: int, consumer: Consumer, skip: int, ledger: "_Ledger"
    ) -> Iterator[Group]:
        places = 0
        for item in islice(self._shuffled(piece, epoch, consumer), skip, None):
            places += 1
            group = self._decode(item, ledger)
            if group is not None:
                yield from [group] * places
                places = 0
        if places:
            round_again = self._shuffled(piece, epoch, consumer)
            good = (group for item in round_again if (group := self._decode(item)) is not None)
            group = next(good, None)
            if group is None:
                raise ledger.error()
            yield from [group] * places

    def _shuffled(
        self, piece: Piece, epoch: int, consumer: Consumer
    ) -> Iterator[RawRecord | Damage]:
        dice = generator(self.seed, epoch, _BUFFER, consumer.rank, consumer.worker)
        return buffer_shuffle(self._items(piece, epoch), self.buffer, dice)

    def _items(self, piece: Piece, epoch: int | None) -> Iterator[RawRecord | Damage]:
        """Yields the undecoded records of the places of `piece`; `epoch` None means in order."""
        line = self._line(piece, epoch)
        mine = line[piece.start : piece.stop]
        readers = []
        for number, data in enumerate(self.sets):
            start = int(np.count_nonzero(line[: piece.start] == number))
            stop = start + int(np.count_nonzero(mine == number))
            chance = None if epoch is None else (self.seed, epoch, _SHARDS, number)
            readers.append(_read_set(data, start, stop, chance, self.images))
        for number in mine:
            yield next(readers[number])

    def _line(self, piece: Piece, epoch: int | None) -> np.ndarray:
        if epoch is None:
            return mixture([data.manifest.records for data in self.sets], None)
        weights = [data.weight * data.manifest.records for data in self.sets]
        return mixture(shares(piece.total, weights), (self.seed, epoch, _MIXTURE))

    def _decode(self, item: RawRecord | Damage, ledger: "_Ledger | None" = None) -> Group | None:
        """Returns the group, or None where the record is damaged, which `ledger` then notes."""
        damage = item
        if isinstance(item, RawRecord):
            try:
                group = decode_group(item, self.images)
                unknown = [] if self.stored is None else group.image_ids
                for image in unknown:
                    if self.stored is not None and image not in self.stored:
                        raise RecordError(f"image {image} has no stored features")
                return group
            except RecordError as error:
                damage = Damage(item.shard, item.key, str(error))
        if ledger is not None:
            ledger.note(str(damage))
        return None


class _Ledger:
    """Counts one consumer's damaged records in one epoch, and fails when there are too many."""

    def __init__(self, records: int, max_damaged: float) -> None:
        self.records, self.limit = records, math.ceil(max_damaged * records)
        self.count = 0
        self.known: dict[str, None] = {}
        self.reported = 0

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
    data: ShardSet, start: int, stop: int, chance: tuple[int, ...] | None, images: bool
) -> Iterator[RawRecord | Damage]:
    files = data.files
    for segment in segments(data.counts, start, stop, chance):
        yield from read_records(files[segment.shard], segment.first, segment.last, images)


def buffer_shuffle(items: Iterable[T], size: int, dice: np.random.Generator) -> Iterator[T]:
    """Yields all items, each drawn from a buffer of `size` (0 or 1: in order).

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
        drawn = int(dice.integers(len(buffer)))
        buffer[drawn], item = item, buffer[drawn]
        yield item
    for at in dice.permutation(len(buffer)).tolist():
        yield buffer[at]


def check_sets(sets: Sequence[ShardSet], name: str) -> tuple[ShardSet, ...]:
    """Returns the sets, each of whose manifest has been read.

    Raises:
        UserError: There are none, or one cannot be read.
    """
    if not sets:
        raise UserError(f"expected at least one shard set in {name}, got none: name a folder")
    for data in sets:
        _ = data.manifest
    return tuple(sets)
