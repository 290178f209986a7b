"""Shard sets, those that `data_builders` write and others' WebDataset tars.

In: a folder of tars. Out: their counts and decoded records. Never: an order of records.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from annotated_types import Gt
from pydantic import AllowInfNan, PositiveInt

from vlmtune.config import Configured
from vlmtune.data.images import open_image
from vlmtune.data.schema import (
    INDEX,
    MANIFEST,
    Manifest,
    RecordError,
    parse_manifest,
    read_manifest,
)
from vlmtune.data.tar_index import OpenTars
from vlmtune.data.tar_records import RawRecord, Shard
from vlmtune.data.webdataset import decode_header
from vlmtune.errors import UserError
from vlmtune.storage.remote import CACHE_BYTES
from vlmtune.storage.remote.address import is_remote
from vlmtune.types import Group

Weight = Annotated[float, Gt(0), AllowInfNan(False)]
AHEAD = 2  # remote shards that are downloaded while one is read from end to end


class ShardSet(Configured):
    """A folder of shards, as `vlmtune build` writes them, or of others' WebDataset tars.

    The folder may be a URL that fsspec reads (`s3://`, `gs://`, `hf://`, `https://`). Its manifest
    is read once, and its shards when they are needed, through a local cache. `$NAME` in a URL
    stands for an environment variable; a password or a query string must be one.

    Tars without a manifest hold an image (jpg, png, webp) and its caption (txt or json) a record,
    as img2dataset writes them. Their index is made at first use (`vlmtune.data.tar_manifest`). They
    may also be named: `data-{000000..000009}.tar`, of a URL too (`vlmtune.data.named_tars`).

    Args:
        path: The folder, its URL, or tars. It is read on first use, so that a config may name one
            before it is built.
        weight: How often training sees a record of this set, relative to a set of weight 1.
            Evaluation sees each record once.
        cache: Folder for local copies of the shards of a URL; None for `~/.cache/vlmtune/shards`.
        cache_bytes: Bytes that these copies may take.
    """

    def __init__(
        self,
        path: str,
        weight: Weight = 1.0,
        cache: str | None = None,
        cache_bytes: PositiveInt = CACHE_BYTES,
    ) -> None:
        # A URL is checked first: it may not come into a message before.
        remote = None
        if is_remote(path):
            from vlmtune.storage.remote.folder import RemoteFolder  # most shards are on a disk

            remote = RemoteFolder(path, cache, cache_bytes)
        self.remote = None if names_tars(path) else remote
        self.path = path
        self.weight = float(weight)  # a config may hold a whole number
        self.cache = cache

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, checked against the folder."""
        file = self.folder / MANIFEST
        if self.remote is not None:
            manifest = parse_manifest(self.remote.copy(MANIFEST), str(self.remote))
        elif file.is_file() and parse_manifest(file, str(file)).builder != INDEX:
            manifest = read_manifest(self.folder)
        else:
            from vlmtune.data.tar_manifest import open_manifest  # shards of `build` need no index

            manifest = open_manifest(self.folder)
        if manifest.records == 0:
            raise UserError(f"expected records in {self.path}, got none: build the shards again")
        return manifest

    @cached_property
    def folder(self) -> Path:
        """The folder of the shards on this machine; named tars have links and copies there."""
        if not names_tars(self.path):
            return Path(self.path).expanduser()
        from vlmtune.data.named_tars import gathered  # loads webdataset's readers of URLs

        return gathered(self.path, self.cache)

    @property
    def counts(self) -> list[int]:
        """Records in each shard."""
        return [shard.records for shard in self.manifest.shards]

    @property
    def files(self) -> list[Shard]:
        """The tars."""
        return [self.file(number) for number in range(len(self.manifest.shards))]

    def file(self, number: int) -> Shard:
        """The tar of a shard, by number."""
        shard = self.manifest.shards[number]
        if self.remote is None:
            return self.folder / shard.file
        return self.remote.file(shard.file, shard.bytes, shard.sha256, self.has_sha256)

    @property
    def has_sha256(self) -> bool:
        """Whether the manifest has the sha256 of each tar; an index has that of captions."""
        return self.manifest.builder != INDEX

    def digest(self) -> str:
        """Hex digest of the shards' checksums: equal digests mean equal records."""
        sums = "\n".join(shard.sha256 for shard in self.manifest.shards)
        return hashlib.sha256(sums.encode()).hexdigest()


def names_tars(path: str) -> bool:
    """Whether a path names tars, or a command that prints one, and not their folder.

    Example:
        >>> names_tars("data-{0..9}.tar"), names_tars("https://host/a.tar?$KEY"), names_tars("data")
        (True, True, False)
    """
    if path.startswith("pipe:"):
        return True
    without_query = path.partition("?")[0]
    return without_query.endswith(".tar") and not os.path.isdir(path)


def read_headers(sets: Sequence[ShardSet]) -> Iterator[tuple[RawRecord, Group, tuple[str, ...]]]:
    """Yields each sound record by its JSON alone: undecoded, decoded, and its image files."""
    with OpenTars() as tars:
        for data in sets:
            files = data.files
            for number, info in enumerate(data.manifest.shards):
                if data.remote is not None:
                    following = files[number + 1 :]
                    tars.expect(following[:AHEAD])
                for record in range(info.records):
                    raw = tars.read(files[number], info, record, False, data.has_sha256)
                    if not isinstance(raw, RawRecord):
                        continue
                    try:
                        group, images = decode_header(raw)
                    except RecordError:
                        continue
                    yield raw, group, images


def decode_group(raw: RawRecord, images: bool = True) -> Group:
    """Returns a record's group, with or without decoded images; `RecordError` if damaged."""
    group, files = decode_header(raw)
    if not images:
        return group
    pictures = [open_image(raw.members[file]) for file in files]
    return replace(group, images=tuple(pictures))
