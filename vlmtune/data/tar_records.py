"""The records of a tar: their members by name, in order, and what is damaged.

In: a tar. Out: undecoded records. Never: a member extracted to a file, or a record lost by damage
before it.
"""

import contextlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from webdataset.tariterators import group_by_keys

if TYPE_CHECKING:  # most tars are on a disk
    from vlmtune.storage.remote.folder import RemoteFile

Shard: TypeAlias = "Path | RemoteFile"
"""A tar: both have a name, and open for reading."""
TEXTS = ("json", "txt")
"""Ends of the names of members that are read even where images are not."""


def is_text(member: str) -> bool:
    """Whether a member of a record is a text, by its name.

    Example:
        >>> is_text("json"), is_text("caption.txt"), is_text("0.png")
        (True, True, False)
    """
    return member.rpartition(".")[2] in TEXTS


@dataclass(frozen=True)
class RawRecord:
    """An undecoded record: its members by name (`0.png`, `json`), and their offsets and sizes.

    `members` may leave out images.
    """

    shard: Shard
    key: str
    members: dict[str, bytes]
    spans: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Damage:
    """An unusable record, and why; `str` gives the line to report."""

    shard: Shard
    key: str
    reason: str

    def __str__(self) -> str:
        return " ".join(f"{self.shard} {self.key} {self.reason}".split())


def read_records(
    shard: Shard, count: int | None = None, images: bool = True
) -> Iterator[RawRecord | Damage]:
    """Yields the first records of a tar: always `count` items.

    An unusable record (the tar ends early, a member is a link or its path leaves the tar) comes as
    `Damage`, so that every other record keeps its position. Without `images` only the texts are
    read. Without `count` all records come, and one `Damage` for an unreadable rest.
    """
    # Members are read at their offsets, through a file of their own: seeking in the one that
    # `tarfile` reads would lose its place.
    file: BinaryIO | None = None
    with contextlib.ExitStack() as stack:
        for record in locate_records(shard, count):
            if isinstance(record, RawRecord):
                file = file or stack.enter_context(shard.open("rb", buffering=0))
                yield read_members(file.fileno(), record, images)
            else:
                yield record


def locate_records(shard: Shard, count: int | None) -> Iterator[RawRecord | Damage]:
    """Yields records as `read_records` does, but reads none of their members."""
    done = 0
    rest = 0
    reason = "the tar ends early"
    try:
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            records = group_by_keys(_members(tar))
            for record in islice(records, count):
                yield _located(shard, record)
                done += 1
    except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
        reason = f"the tar is unreadable from somewhere on: {error}"
        rest = 1
    if count is not None:
        rest = count - done
    for _ in range(rest):
        yield Damage(shard, "-", reason)


def read_members(file: int, record: RawRecord, images: bool = True) -> RawRecord | Damage:
    """Returns a located record with its members, or with its texts alone, from an open file."""
    members = {}
    for name, (offset, size) in record.spans.items():
        if not images and not is_text(name):
            continue
        try:
            content = os.pread(file, size, offset)
        except OSError as error:
            return Damage(record.shard, record.key, f"cannot be read ({error.strerror})")
        if len(content) < size:
            return Damage(record.shard, record.key, "is cut off: the tar ends early")
        members[name] = content
    return replace(record, members=members)


def _members(tar: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    """Yields the name and the header of each member; a refused member has a reason instead."""
    while (member := tar.next()) is not None:
        # TarFile keeps every header it has read: thousands in a shard, never needed again.
        tar.members = []  # type: ignore[attr-defined]
        path = PurePosixPath(member.name)  # without "./" in front
        header: tarfile.TarInfo | str = member
        name = str(path)  # WebDataset allows keys with folders
        if path.is_absolute() or ".." in path.parts:
            # Grouping by the last part of the name keeps a refused member in its record.
            name = path.name
            header = f"has member {member.name!r}, a path that leaves the tar"
        elif not member.isreg() or member.issparse():
            header = f"has member {member.name!r}, which is a link or a special file"
        yield {"fname": name, "data": header, "__url__": tar.name}


def _located(shard: Shard, record: dict[str, Any]) -> RawRecord | Damage:
    key = record["__key__"]
    spans = {}
    for name, header in record.items():
        if name.startswith("__"):  # of webdataset
            continue
        if isinstance(header, str):
            return Damage(shard, key, header)
        spans[name] = (header.offset_data, header.size)
    return RawRecord(shard, key, {}, spans)
