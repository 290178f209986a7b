"""Reads the shards that `data_builders` write: a folder in, records and reports of damage out.

Nothing is trusted: no member is extracted to a file, and damage never stops the other records.
"""

import hashlib
import json
import math
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from webdataset.tariterators import group_by_keys

from vlmtune.config import Configured
from vlmtune.data.images import open_image
from vlmtune.data.schema import Manifest, RecordError, decode, read_manifest
from vlmtune.errors import UserError
from vlmtune.types import Group


class ShardSet(Configured):
    """A folder of shards, as `vlmtune build` writes them.

    Args:
        path: The folder. It is read on first use, so that a config may name one before it is built.
        weight: How often training sees a record of this set, relative to a set of weight 1.
            Evaluation sees each record once.
    """

    def __init__(self, path: str, weight: float = 1.0) -> None:
        if not (math.isfinite(weight) and weight > 0):
            raise UserError(
                f"expected a weight above 0 for {path}, got {weight}: raise it or drop the set"
            )
        self.path, self.weight = path, float(weight)

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked against the folder."""
        manifest = read_manifest(Path(self.path))
        if manifest.records == 0:
            raise UserError(f"expected records in {self.path}, got none: build the shards again")
        return manifest

    @property
    def counts(self) -> list[int]:
        """Records in each shard."""
        return [shard.records for shard in self.manifest.shards]

    @property
    def files(self) -> list[Path]:
        """The tars."""
        return [Path(self.path) / shard.file for shard in self.manifest.shards]

    def digest(self) -> str:
        """Hex digest of the shards' checksums: equal digests mean equal records."""
        sums = "\n".join(shard.sha256 for shard in self.manifest.shards)
        return hashlib.sha256(sums.encode()).hexdigest()


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
    shard: Path, first: int, last: int, images: bool = True
) -> Iterator[RawRecord | Damage]:
    """Yields records `first` to `last` (exclusive) of a tar: always `last - first` items.

    Records before `first` are skipped by their headers alone. An unusable record (the tar ends
    early, a member is a link or has a path) comes as `Damage`, so that every other record keeps its
    position. Without `images` only the JSON is read.
    """
    done, reason = first, "the tar ends early"
    try:
        with tarfile.open(shard, "r:") as tar:
            for record in islice(group_by_keys(_members(tar)), first, last):
                yield _load(tar, shard, record, images)
                done += 1
    except (OSError, tarfile.TarError, ValueError, OverflowError) as error:
        reason = f"the tar is unreadable from somewhere on: {error}"
    for _ in range(done, last):
        yield Damage(shard, "-", reason)


def _members(tar: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    """Yields the name and the header of each member; a refused member has a reason instead."""
    while (member := tar.next()) is not None:
        # TarFile keeps every header it has read: thousands in a shard, never needed again.
        tar.members = []  # type: ignore[attr-defined]
        # Grouping by the last part of the name keeps a refused member in its record.
        name = PurePosixPath(member.name).name
        header: tarfile.TarInfo | str = member
        if name != member.name:
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
        if images or name == "json":
            file = tar.extractfile(header)
            members[name] = b"" if file is None else file.read()
    spans = {name: (header.offset_data, header.size) for name, header in headers.items()}
    return RawRecord(shard, key, members, spans)


def read_headers(sets: Sequence[ShardSet]) -> Iterator[tuple[RawRecord, Group, tuple[str, ...]]]:
    """Yields each record of shard sets by its JSON alone: undecoded, decoded, and its image files.

    Damaged records are left out; `GroupStream` reports them.
    """
    for data in sets:
        for file, count in zip(data.files, data.counts, strict=True):
            for raw in read_records(file, 0, count, images=False):
                if isinstance(raw, RawRecord):
                    try:
                        group, files = decode_header(raw)
                    except RecordError:
                        continue
                    yield raw, group, files


def decode_header(raw: RawRecord) -> tuple[Group, tuple[str, ...]]:
    """Returns a record's group without images, and its image files; `RecordError` if damaged."""
    try:
        record = json.loads(raw.members["json"])
    except KeyError:
        raise RecordError("has no json") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"has a malformed json ({error})") from error
    if not isinstance(record, dict):
        raise RecordError("has a malformed json (not an object)")
    group, files = decode(raw.key, record)
    missing = [file for file in files if file not in raw.spans]
    if missing:
        raise RecordError(f"lacks image {missing[0]}")
    return group, files


def decode_group(raw: RawRecord, images: bool = True) -> Group:
    """Returns a record's group, with or without decoded images; `RecordError` if damaged."""
    group, files = decode_header(raw)
    if not images:
        return group
    return replace(group, images=tuple(open_image(raw.members[file]) for file in files))
