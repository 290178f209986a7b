"""The records of a builder, cut into the chunks that become shards.

In: a builder's records. Out: the chunks of one part, and what came of each.
Never: another cut because an image is damaged, or because a build was killed or split into parts.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_builders.left_out import LeftOut, Line
from data_builders.parts import Contents, Part
from data_builders.shard_files import Chunk, Written
from data_builders.unfinished import ShardState
from vlmtune.data.schema import encode
from vlmtune.types import Group

Record = tuple[Group, Sequence[bytes | Path]]
ListLines = Callable[[str, bytes | Path, str, str], Iterator[Line]]


class ShardChunks:
    """Cuts records into chunks, and holds those that are not written yet.

    `list_lines` gives the lines of an image that cannot be used, as `ShardBuilder.lines`.
    """

    def __init__(self, size: int, part: Part, counts: Counter[str], list_lines: ListLines) -> None:
        self._size, self._part, self._counts, self._lines = size, part, counts, list_lines
        self._waiting: dict[int, tuple[Chunk, list[Counter[str]]]] = {}
        self._keys = hashlib.sha256()
        self._records = self.images = 0

    def cut(self, records: Iterator[Record]) -> Iterator[Chunk]:
        """Yields the chunks of the part; reads all records."""
        taken: list[tuple[str, dict[str, Any], Sequence[bytes | Path]]] = []
        counted: list[Counter[str]] = []
        before: Counter[str] = Counter()
        number = 0
        for group, images in records:
            number = self._records // self._size
            if self._part.writes(number):
                # The names of the images follow from their content, which nobody has read yet.
                taken.append((group.key, encode(group, [""] * len(images)), tuple(images)))
                counted.append(_of_record(self._counts, before))
            before = self._counts.copy()
            self._keys.update(f"{group.key}\n".encode())
            self.images += len(images)
            self._records += 1
            if taken and self._records % self._size == 0:
                yield self._hold(Chunk(number, taken), counted)
                taken, counted = [], []
        if taken:
            yield self._hold(Chunk(number, taken), counted)

    def state(self, written: Written) -> ShardState:
        """Returns what came of a chunk: lines of its unusable images, and less counts."""
        chunk, counted = self._waiting.pop(written.number)
        lines: list[Line] = []
        for fault in written.faults:
            _, record, images = chunk.records[fault.record]
            name = record["images"][fault.image]["id"]
            lines += self._lines(name, images[fault.image], fault.reason, fault.detail)
        less: Counter[str] = Counter()
        for number in {fault.record for fault in written.faults}:
            less.subtract(counted[number])
        return ShardState(written, tuple(lines), dict(less))

    def contents(self, left_out: LeftOut) -> Contents:
        """Returns what all parts have in common, after the last record."""
        return Contents(
            shards=-(-self._records // self._size),
            records=self._keys.hexdigest(),
            counts=dict(sorted(self._counts.items())),
            lines=tuple(left_out.lines),
            total=left_out.total or self.images,
            unit=left_out.unit,
        )

    def _hold(self, chunk: Chunk, counted: list[Counter[str]]) -> Chunk:
        self._waiting[chunk.number] = chunk, counted
        return chunk


def _of_record(counts: Counter[str], before: Counter[str]) -> Counter[str]:
    """What one record counted; what was skipped before it stays skipped."""
    added = counts - before
    return Counter({name: n for name, n in added.items() if not name.startswith("skipped")})
