"""The records of a tar: their members by name, in order, and what is damaged.

In: a tar. Out: undecoded records. Nothing is trusted: no member is extracted to a file, and damage
never stops the other records.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from webdataset.tariterators import group_by_keys

TEXTS = ("json", "txt")
"""Members that are read even where images are not."""


@dataclass(frozen=True)
class RawRecord:
    """An undecoded record: its members by name (`0.png`, `json`), and their offsets and sizes.

    `members` may leave out images.
    """

    shard: Path
    key: str
    members: dict[str, bytes]
    spans: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Damage:
    """An unusable record, and why; `str` gives the line to report."""

    shard: Path
    key: str
    reason: str

    def __str__(self) -> str:
        return " ".join(f"{self.shard} {self.key} {self.reason}".split())


def read_records(
    shard: Path, first: int, last: int | None, images: bool = True
) -> Iterator[RawRecord | Damage]:
    """Yields records `first` to `last` (exclusive) of a tar: always `last - first` items.

    Records before `first` are skipped by their headers alone. An unusable record (the tar ends
    early, a member is a link or has a path) comes as `Damage`, so that every other record keeps its
    position. Without `images` only the texts are read. With `last` None all records come, and one
    `Damage` for an unreadable rest.
    """
    done, reason = first, "the tar ends early"
    rest = 0
    try:
        with tarfile.open(shard, "r:") as tar:
            for record in islice(group_by_keys(_members(tar)), first, last):
                yield _load(tar, shard, record, images)
                done += 1
    except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
        reason, rest = f"the tar is unreadable from somewhere on: {error}", 1
    for _ in range(rest if last is None else last - done):
        yield Damage(shard, "-", reason)


def _members(tar: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    """Yields the name and the header of each member; a refused member has a reason instead."""
    while (member := tar.next()) is not None:
        # TarFile keeps every header it has read: thousands in a shard, never needed again.
        tar.members = []  # type: ignore[attr-defined]
        # Grouping by the last part of the name keeps a refused member in its record.
        name = PurePosixPath(member.name).name
        header: tarfile.TarInfo | str = member
        if name != member.name.removeprefix("./"):
            header = f"has member {member.name!r}, a path where a plain name belongs"
        elif not member.isreg() or member.issparse():
            header = f"has member {member.name!r}, which is a link or a special file"
        yield {"fname": name, "data": header, "__url__": tar.name}


def _load(
    tar: tarfile.TarFile, shard: Path, record: dict[str, Any], images: bool
) -> RawRecord | Damage:
    key = record["__key__"]
    headers = {name: x for name, x in record.items() if not name.startswith("__")}
    for header in headers.values():
        if isinstance(header, str):
            return Damage(shard, key, header)
    members = {}
    for name, header in headers.items():
        if images or name in TEXTS:
            file = tar.extractfile(header)
            members[name] = b"" if file is None else file.read()
    spans = {name: (header.offset_data, header.size) for name, header in headers.items()}
    return RawRecord(shard, key, members, spans)
