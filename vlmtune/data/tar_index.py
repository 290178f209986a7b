"""Any record of a tar at once, by its number: an index of where the members of each record lie.

In: a tar, and what its manifest says of it. Out: undecoded records. Never: a whole tar in memory.

The index is made when a tar is first read, and kept in a file of numpy beside the tar
(`shard-000000.offsets.npz`), or in `~/.cache/vlmtune/offsets` where that folder cannot be written.
It has the arrays

    rows     int64 (n + 1)       the members of record r are rows[r] to rows[r + 1]
    spans    int64 (m, 2)        offset and size of each member in the tar
    ends     int64 (n + m + 1)   where each string ends in `strings`
    strings  bytes               of each record its key and the names of its members
    key      text                of which tar it is, and of which change of that tar
    sha256   text                of the whole tar; empty if it was not computed

A refused record has one member with offset -1, whose name is the reason.

The sha256 is computed once for all ranks, workers and later runs, until the tar's size, time of
change or inode is another one.
"""

import hashlib
import logging
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vlmtune.data.schema import ShardInfo
from vlmtune.data.tar_records import Damage, RawRecord, Shard, locate_records, read_members
from vlmtune.errors import UserError
from vlmtune.storage.files import regular, sha256_of, write_atomically

if TYPE_CHECKING:  # most tars are on a disk
    from vlmtune.storage.remote.folder import RemoteFile, RemoteFolder

VERSION = 4
SUFFIX = ".offsets.npz"
OPEN_TARS = 128  # tars, with their indexes, that one reader keeps open
AHEAD = 16  # remote tars that one reader downloads before it needs them

log = logging.getLogger("vlmtune")
_warned: set[Path] = set()


@dataclass(frozen=True)
class TarIndex:
    """Where the records of a tar lie; see the arrays above."""

    rows: np.ndarray
    spans: np.ndarray
    ends: np.ndarray
    strings: np.ndarray

    def __len__(self) -> int:
        return len(self.rows) - 1

    def record(self, shard: Shard, number: int) -> RawRecord | Damage:
        """Returns a record, located but not read."""
        first, last = self.rows[number : number + 2].tolist()  # its members are from first to last
        # Each record before has one string more than members: its key.
        ends = self.ends[first + number : last + number + 2]
        strings = []
        for start, stop in pairwise(ends.tolist()):
            text = self.strings[start:stop].tobytes()
            strings.append(text.decode("utf-8", "surrogateescape"))
        key, *names = strings
        spans = {}
        members = self.spans[first:last].tolist()
        for name, (offset, size) in zip(names, members, strict=True):
            if offset < 0:
                return Damage(shard, key, name)
            spans[name] = (offset, size)
        return RawRecord(shard, key, {}, spans)


def pack(records: Iterable[tuple[str, Mapping[str, tuple[int, int]]]]) -> TarIndex:
    """Packs the key of each record, and the offset and size of each of its members by name."""
    rows = array("q", [0])
    spans = array("q")
    ends = array("q", [0])
    strings = bytearray()
    for key, members in records:
        for text in (key, *members):
            strings += text.encode("utf-8", "surrogateescape")
            ends.append(len(strings))
        for span in members.values():
            spans.extend(span)
        rows.append(len(spans) // 2)
    return TarIndex(
        rows=np.array(rows, "<i8"),
        spans=np.array(spans, "<i8").reshape(-1, 2),
        ends=np.array(ends, "<i8"),
        strings=np.frombuffer(bytes(strings), np.uint8),
    )


def make_index(shard: Path, records: int) -> TarIndex:
    """Reads the headers of a tar; records that cannot be found are `Damage`."""
    located = []
    for record in locate_records(shard, records):
        spans = record.spans if isinstance(record, RawRecord) else {record.reason: (-1, 0)}
        located.append((record.key, spans))
    return pack(located)


def open_index(shard: Path, info: ShardInfo, verify: bool = False) -> TarIndex:
    """Returns the index of a tar; makes and keeps it if there is none of these very records.

    An index with records that cannot be found is not kept, as the tar may be mended. With `verify`
    a warning names a tar whose sha256 is not that of its manifest; it is computed once for each
    change of the tar, where an index can be kept.
    """
    status = shard.stat()
    # Another text for another tar, and when a tar is written again or copied.
    identity = (status.st_size, status.st_mtime_ns, status.st_ino)
    key = repr((VERSION, info.records, info.sha256, *identity))
    stored = _stored(shard, key, verify)
    if stored is None:
        # A tar in the cache of remote storage is locked by its readers, and is checked already.
        with _alone(shard) if verify else nullcontext():
            # Another reader may have written it meanwhile.
            stored = _stored(shard, key, verify) or _new(shard, info, key, verify)
    index, sha256 = stored
    if verify and sha256 not in ("", info.sha256) and shard not in _warned:
        _warned.add(shard)  # once in a process
        log.warning(
            "expected %s as its manifest describes it, got another sha256: records that can be "
            "decoded are used; copy the tar or build the shards again",
            shard,
        )
    return index


def _stored(shard: Path, key: str, verify: bool) -> tuple[TarIndex, str] | None:
    """The first kept index of this very tar, with the tar's sha256."""
    for path in _candidates(shard):
        kept = _read(path, key)
        if kept is None:
            continue
        _, sha256 = kept  # an index of a reader that did not verify has no sha256
        if sha256 or not verify:
            return kept
    return None


def _new(shard: Path, info: ShardInfo, key: str, verify: bool) -> tuple[TarIndex, str]:
    """A new index, kept if it can be, with the tar's sha256 if that is to be kept, too."""
    index = make_index(shard, info.records)
    path = _writable(_candidates(shard))
    has_damage = (index.spans[:, 0] < 0).any()
    if path is None or has_damage:
        return index, ""
    sha256 = sha256_of(shard) if verify else ""  # it reads the whole tar, which nobody else needs
    # On a full disk each reader makes it again. numpy adds a suffix to a path, not to a file.
    with suppress(UserError), write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez(file, key=key, sha256=sha256, **vars(index))
    return index, sha256


def _candidates(shard: Path) -> tuple[Path, Path]:
    """Where the index of a tar may lie: beside it, or in the user's cache."""
    beside = shard.with_suffix(SUFFIX)
    # The name of a shard recurs in other folders.
    folder = str(shard.parent.resolve())
    digest = hashlib.sha256(folder.encode()).hexdigest()[:16]
    cached = Path.home() / ".cache/vlmtune/offsets" / digest / beside.name
    return beside, cached


def _writable(candidates: Sequence[Path]) -> Path | None:
    for path in candidates:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.access(path.parent, os.W_OK):
                return path
    return None


@contextmanager
def _alone(shard: Path) -> Iterator[None]:
    """Lets one reader of a machine at a time make the index of a tar, where files can be locked."""
    with shard.open("rb") as file:
        with suppress(OSError, ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path, key: str) -> tuple[TarIndex, str] | None:
    """The index in a file, with the sha256 of its tar; None if it is damaged or of another tar."""
    try:
        with regular(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            # numpy alone compares no crc32 where a changed header has it read less than all.
            if file.zip.testzip() is not None or str(file["key"]) != key:
                return None
            index = TarIndex(file["rows"], file["spans"], file["ends"], file["strings"])
            return index, str(file["sha256"])
    except Exception:  # on damaged bytes numpy and zipfile raise anything
        return None


class OpenTars:
    """Reads single records of tars, and keeps the last tars open; used as a context."""

    def __init__(self) -> None:
        self._open: OrderedDict[Shard, tuple[ExitStack, int, TarIndex]] = OrderedDict()
        self._folders: set[RemoteFolder] = set()

    def __enter__(self) -> "OpenTars":
        return self

    def __exit__(self, *exception: object) -> None:
        self.expect([])
        for shard in [*self._open]:
            self._close(shard)

    def expect(self, shards: Sequence[Shard]) -> None:
        """Downloads the first of the remote tars that come next; other remote tars are closed."""
        coming = _remote(shards)
        # A tar that is open is in use, so the cache cannot remove it for the next one.
        for shard in _remote(self._open):
            if shard not in coming:
                self._close(shard)
        self._folders |= {shard.folder for shard in coming}
        closed = [shard for shard in coming if shard not in self._open]
        for folder in self._folders:
            missing = [shard for shard in closed if shard.folder is folder]
            folder.expect(missing[:AHEAD])

    def read(
        self, shard: Shard, info: ShardInfo, number: int, images: bool = True, verify: bool = False
    ) -> RawRecord | Damage:
        """Returns record `number` of a tar, with its images or with its texts alone.

        `verify` is that of `open_index`; a remote tar was verified when it was downloaded.
        """
        try:
            file, index = self._opened(shard, info, verify)
        except OSError as error:
            return Damage(shard, "-", f"the tar cannot be opened: {error.strerror}")
        record = index.record(shard, number)
        if isinstance(record, Damage):
            return record
        return read_members(file, record, images)

    def _opened(self, shard: Shard, info: ShardInfo, verify: bool) -> tuple[int, TarIndex]:
        if shard not in self._open:
            # Each open tar takes a file descriptor and the memory of its index.
            while len(self._open) >= OPEN_TARS:
                least_recent = next(iter(self._open))
                self._close(least_recent)
            if not isinstance(shard, Path):
                self._make_room(shard)
            with ExitStack() as stack:
                file = stack.enter_context(shard.open("rb", buffering=0))
                if isinstance(shard, Path):
                    index = open_index(shard, info, verify)
                else:
                    index = open_index(shard.local, info)
                # Only once the index is there the file outlives this block.
                self._open[shard] = (stack.pop_all(), file.fileno(), index)
        self._open.move_to_end(shard)  # so that the first is the least recent
        _, descriptor, index = self._open[shard]
        return descriptor, index

    def _make_room(self, shard: "RemoteFile") -> None:
        """Closes other remote tars until the cache can take another one."""
        if not shard.fits:
            shard.folder.free()  # what is read now comes before what is read ahead
        for other in _remote(self._open):
            if shard.fits:
                return
            self._close(other)

    def _close(self, shard: Shard) -> None:
        stack, _, _ = self._open.pop(shard)
        stack.close()


def _remote(shards: Iterable[Shard]) -> "list[RemoteFile]":
    return [shard for shard in shards if not isinstance(shard, Path)]
