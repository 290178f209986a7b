"""Any record of shard sets by its number, and the records of images.

In: shard sets. Out: located records, read one at a time. Never: an object for each record in
memory, which worker processes would copy: what is kept are arrays.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet, decode_group, read_headers
from vlmtune.data.tar_index import TarIndex, pack
from vlmtune.data.tar_records import Damage, RawRecord, Shard, read_members
from vlmtune.types import Group


def read_group(located: RawRecord, images: bool = True) -> Group:
    """Decodes a located record, with or without its images; `RecordError` if it is damaged."""
    try:
        with located.shard.open("rb", buffering=0) as file:
            raw = read_members(file.fileno(), located, images)
    except OSError as error:
        raise RecordError(f"cannot be read ({error.strerror})") from error
    if isinstance(raw, Damage):
        raise RecordError(raw.reason)
    return decode_group(raw, images)


class RecordIndex:
    """The records by number, as one `TarIndex` of all shards and the shard of each record."""

    def __init__(self, shards: Sequence[Shard], shard_of: np.ndarray, index: TarIndex) -> None:
        self._shards = shards
        self._shard_of = shard_of
        self._index = index

    def __len__(self) -> int:
        return len(self._shard_of)

    def __getitem__(self, number: int) -> RawRecord:
        """Returns a record, located but not read."""
        shard_number = self._shard_of[number]
        shard = self._shards[shard_number]
        raw = self._index.record(shard, number)
        assert isinstance(raw, RawRecord)  # no other is in it
        return raw


def record_index(
    sets: Sequence[ShardSet], note: Callable[[int, str], object] = lambda number, image: None
) -> RecordIndex:
    """Locates every sound record, and calls `note` with its number and each of its image ids."""
    shards: dict[Shard, int] = {}
    shard_of = array("i")  # a list would hold an object for each of millions of records

    def located() -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
        for number, (raw, group, _) in enumerate(read_headers(sets)):
            shard_number = shards.setdefault(raw.shard, len(shards))
            shard_of.append(shard_number)
            for image in group.image_ids:
                note(number, image)
            yield raw.key, raw.spans

    index = pack(located())
    return RecordIndex(list(shards), np.array(shard_of, np.int32), index)
