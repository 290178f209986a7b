"""The groups one consumer sees in one epoch: a pure function of seed, epoch and position.

In: shard sets. Out: batches of groups, and lines about damaged records. Never: a shifted position,
as what stands at a position does not depend on who reads it, damage or not.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vlmtune.data.rendered import RenderedSet
from vlmtune.data.sample_order import (
    Consumer,
    Entry,
    EpochOrder,
    apportion,
    train_batches,
    train_ranges,
    validation_batches,
    validation_ranges,
)
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet, decode_group
from vlmtune.data.tar_index import OpenTars
from vlmtune.data.tar_records import Damage
from vlmtune.errors import UserError
from vlmtune.types import Group

GroupBatch = tuple[list[Group], tuple[str, ...]]

_EVALUATION = 1 << 30  # the epoch of rendered groups that training never sees


@dataclass(frozen=True)
class GroupStream:
    """Reads shard sets in batches of groups.

    Training mixes the sets: each set gives a fraction of the epoch in proportion to `weight x
    records`, spread evenly and shuffled in each epoch. A set that is too small starts over. Every
    rank gets as many full batches. Evaluation takes each record once, in order.

    An unusable record is reported. In training the nearest earlier good record of the epoch
    replaces it (going round from the first position to the last).

    Attributes:
        sets: Where to read.
        batch_size: Groups in a batch.
        train: Training or evaluation.
        total: Groups in a training epoch over all ranks; None for the sum of the sets.
        seed: Seed of every order.
        window: Consecutive records of an epoch that are shuffled among themselves; 0 for none.
        max_damaged: Fraction of a consumer's records that may be damaged, rounded up.
        images: Whether images are read and decoded.
        stored: If not: ids of images with stored features, None for all. A record with another
            image counts as damaged.
    """

    sets: tuple[ShardSet, ...]
    batch_size: int
    train: bool = True
    total: int | None = None
    seed: int = 0
    window: int = 10_000
    max_damaged: float = 0.01
    images: bool = True
    stored: Container[str] | None = None

    @property
    def positions(self) -> int:
        """Positions of an epoch."""
        if self.train and self.total is not None:
            return self.total
        return sum(data.manifest.records for data in self.sets)

    def length(self, rank: int, world: int) -> int:
        """Returns the number of batches one rank sees in an epoch."""
        if self.train:
            return train_batches(self.positions, self.batch_size, world)
        return len(validation_batches(self.positions, self.batch_size, world, rank))

    def batches(
        self, epoch: int = 0, consumer: Consumer | None = None, start: int = 0
    ) -> Iterator[GroupBatch]:
        """Yields a consumer's batches: the groups, and a line for each new damaged record.

        In training the first global batch starts at position `start`.
        """
        consumer = consumer or Consumer()
        with OpenTars() as tars:
            if self.train:
                whole = train_ranges(self.positions, self.batch_size, consumer)
                # The limit of damage is that of a whole epoch, wherever reading starts.
                log = _DamageLog(sum(map(len, whole)), self.max_damaged)
                ranges = train_ranges(self.positions, self.batch_size, consumer, start)
                reader = _Reader(self, epoch, tars)
                yield from _with_replacements(reader, ranges, log)
            else:
                whole = list(validation_ranges(self.positions, self.batch_size, consumer))
                log = _DamageLog(sum(map(len, whole)), self.max_damaged)
                reader = _Reader(self, _EVALUATION, tars)
                yield from _without_damage(reader, whole, log)

    def order(self, epoch: int) -> EpochOrder:
        """Returns what stands at each position of an epoch; evaluation has one order."""
        counts = []
        records = []
        weights = []
        for data in self.sets:
            size = data.manifest.records
            # A rendered set has no shards.
            shard_counts = None if isinstance(data, RenderedSet) else data.counts
            counts.append(shard_counts)
            records.append(size)
            weights.append(data.weight * size)
        if not self.train:
            return EpochOrder(counts, records, None)
        parts = apportion(self.positions, weights)
        return EpochOrder(counts, parts, (self.seed, epoch), self.window)


def _with_replacements(
    reader: "_Reader", ranges: Iterable[range], log: "_DamageLog"
) -> Iterator[GroupBatch]:
    for positions in ranges:
        reader.expect(positions.start)
        # Training has batches of one size on every rank, so a damaged record is replaced.
        groups: list[Group] = []
        for group in reader.groups(positions, log.note):
            if group is None:
                group = groups[-1] if groups else reader.good_before(positions.start, log)
            groups.append(group)
        yield groups, log.drain()


def _without_damage(
    reader: "_Reader", ranges: Sequence[range], log: "_DamageLog"
) -> Iterator[GroupBatch]:
    # One batch is held back, so that damage after the last group is still reported.
    held: list[Group] = []
    for positions in ranges:
        reader.expect(positions.start)
        batch = [group for group in reader.groups(positions, log.note) if group is not None]
        if held and batch:
            yield held, log.drain()
        held = batch or held
    if held:
        yield held, log.drain()


class _Reader:
    """Reads the groups at positions of one epoch."""

    def __init__(self, stream: GroupStream, epoch: int, tars: OpenTars) -> None:
        self._stream = stream
        self._epoch = epoch
        self._tars = tars
        self._order = stream.order(epoch)

    def groups(self, positions: range, note: Callable[[str], None]) -> Iterator[Group | None]:
        """Yields the group at each position; None for a damaged record, which goes to `note`."""
        entries = self._order.entries(positions)
        rendered: dict[int, Iterator[Group]] = {}
        for entry in entries:
            data = self._stream.sets[entry.set]
            if not isinstance(data, RenderedSet):
                yield self._decoded(entry, note)
                continue
            if entry.set not in rendered:
                # A rendered set renders all its groups of a batch together.
                records = [other.record for other in entries if other.set == entry.set]
                groups = data.groups(self._epoch, records[0], len(records))
                rendered[entry.set] = iter(groups)
            yield next(rendered[entry.set])

    def expect(self, position: int) -> None:
        """Has remote shards downloaded that come after a position, while others are read."""
        sets = self._stream.sets
        if not any(data.remote for data in sets):
            return
        files = []
        for number, shard in self._order.coming_shards(position):
            data = sets[number]
            if data.remote:
                files.append(data.file(shard))
        self._tars.expect(files)

    def good_before(self, position: int, log: "_DamageLog") -> Group:
        """Returns the nearest earlier good group, going round; an error if there is none."""
        total = self._order.total
        # By position and not by what this worker has read, so that any number of workers agrees.
        for back in range(1, total):
            at = (position - back) % total
            (group,) = self.groups(range(at, at + 1), lambda line: None)
            if group is not None:
                return group
        raise log.error(total)

    def _decoded(self, entry: Entry, note: Callable[[str], None]) -> Group | None:
        stream = self._stream
        data = stream.sets[entry.set]
        shard = data.file(entry.shard)
        info = data.manifest.shards[entry.shard]
        raw = self._tars.read(shard, info, entry.record, stream.images, data.has_sha256)
        if isinstance(raw, Damage):
            note(str(raw))
            return None
        try:
            group = decode_group(raw, stream.images)
        except RecordError as error:
            damage = Damage(shard, raw.key, str(error))
            note(str(damage))
            return None
        for image in group.image_ids:
            if stream.stored is not None and image not in stream.stored:
                damage = Damage(shard, raw.key, f"image {image} has no stored features")
                note(str(damage))
                return None
        return group


class _DamageLog:
    """Counts one consumer's damaged records in one epoch, and fails when there are too many."""

    def __init__(self, records: int, max_damaged: float) -> None:
        self.records = records
        self.limit = math.ceil(max_damaged * records)  # rounded up: a small set may have one
        self.count = 0
        self.reported = 0
        self.known: dict[str, None] = {}

    def note(self, line: str) -> None:
        self.count += 1
        self.known.setdefault(line)  # a record may come twice in an epoch, and is reported once
        if self.count > self.limit:
            raise self.error(self.count)

    def drain(self) -> tuple[str, ...]:
        """Returns the lines that are new since the last call."""
        fresh = tuple(self.known)[self.reported :]
        self.reported = len(self.known)
        return fresh

    def error(self, count: int) -> UserError:
        first = next(iter(self.known), "none was read")
        return UserError(
            f"expected at most {self.limit} damaged of {self.records} records, got {count} "
            f"({first}): build the shards again or raise max_damaged"
        )


def check_sets(sets: Sequence[ShardSet], name: str) -> tuple[ShardSet, ...]:
    """Returns the sets, with their manifests read."""
    if not sets:
        raise UserError(f"expected at least one shard set in {name}, got none: name a folder")
    for data in sets:
        _ = data.manifest
    return tuple(sets)
