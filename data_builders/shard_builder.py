"""The base of all builders: writes records into shards with a manifest, whole or not at all.

In: annotated images. Out: a folder of shards. Never: a changed image.
"""

import hashlib
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override
from webdataset.writer import TarWriter

from vlmtune.config import Configured
from vlmtune.data.schema import MANIFEST, Manifest, RecordError, ShardInfo, check, encode
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json, write_atomically
from vlmtune.storage.progress import progress as progress_bar
from vlmtune.types import Group

Record = tuple[Group, Sequence[bytes | Path]]

MISSING = 0.02  # default for the largest fraction of image files that may be missing
_SIGNATURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png"}


class Builder(Configured, ABC):
    """Writes a corpus into a folder. Subclasses implement `write` and name their `sources`."""

    @cached_property
    def counts(self) -> Counter[str]:
        """Counts for the manifest, e.g. `self.counts["skipped: no caption"] += 1`."""
        return Counter()

    def sources(self) -> Mapping[str, Path]:
        """Returns the annotation files, by name; their sha256 goes into the manifest.

        By default these are all arguments that are existing files, also those of plug-ins among the
        arguments. So a folder built from a file that changed since is never kept.
        """
        files = list(dict.fromkeys(_argument_files(self.__dict__.get("init_args", {}))))
        names = Counter(file.name for file in files)
        return {file.name if names[file.name] == 1 else str(file): file for file in files}

    def checksums(self) -> dict[str, str]:
        """Returns the sha256 of each source by name, for the manifest."""
        return {name: sha256(Path(path)) for name, path in self.sources().items()}

    @abstractmethod
    def write(self, folder: Path, tick: Callable[[], None]) -> Sequence[ShardInfo]:
        """Writes into the empty `folder`, calls `tick` after each record, returns the shards."""

    def build(self, out: Path, progress: bool = True) -> None:
        """Writes the corpus to `out`, whole or not at all.

        Reuses `out` if it holds the result of the same builder, arguments and sources.
        """
        out = Path(out)
        sources = self.checksums()
        if self._reusable(out, sources):
            return
        self.counts.clear()
        with write_atomically(out) as folder:
            folder.mkdir()
            with progress_bar(type(self).__name__, None, progress) as advance:
                shards = self.write(folder, lambda: advance(1))
            manifest = Manifest(
                **self._identity(),
                sources=sources,
                shards=tuple(shards),
                counts=dict(sorted((+self.counts).items())),
            )
            (folder / MANIFEST).write_text(manifest.to_json())
            self._reusable(out, sources)  # another process may have written there meanwhile

    def _identity(self) -> dict[str, Any]:
        spec = self.spec()
        return {"builder": spec["class_path"], "arguments": spec["init_args"]}

    def _reusable(self, out: Path, sources: Mapping[str, str]) -> bool:
        """Tells whether `out` holds this very build; refuses anything else in its place."""
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return False
        manifest = read_json(out / MANIFEST, "a build") if (out / MANIFEST).is_file() else None
        expected = {**self._identity(), "sources": dict(sources)}
        if not isinstance(manifest, dict) or manifest != {**manifest, **expected}:
            raise UserError(
                f"expected {out} to be free or to hold this very build, it holds something else: "
                "choose another folder or remove it"
            )
        for shard in manifest["shards"]:
            file = out / shard["file"]
            if not file.is_file() or file.stat().st_size != shard["bytes"]:
                raise UserError(
                    f"expected the complete shard {file}, it is missing or truncated: "
                    f"remove {out} and build again"
                )
        print(f"{out} already holds this build; it is kept", file=sys.stderr)
        return True


class ShardBuilder(Builder):
    """Turns the annotations of a corpus into shards; a group is one record and never split.

    Args:
        records_per_shard: Number of groups in one tar.
        missing: Largest fraction of image files that may be missing; they are skipped and counted.
    """

    def __init__(self, records_per_shard: int = 1000, missing: float = MISSING) -> None:
        if records_per_shard < 1:
            raise UserError(f"expected records_per_shard >= 1, got {records_per_shard}: raise it")
        if not 0.0 <= missing <= 1.0:
            raise UserError(
                f"expected a fraction of missing images from 0 to 1, got {missing}: correct it"
            )
        self.records_per_shard, self.missing = records_per_shard, missing
        self._checked: Counter[bool] = Counter()  # image files, by whether they exist
        self._missing_file: Path | None = None

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yields each group with its images, encoded or as files, in the order of `image_ids`."""

    def exists(self, file: Path) -> bool:
        """Tells whether an image file exists, and counts it if not. Call it once a file."""
        exists = file.is_file()
        self._checked[exists] += 1
        if not exists:
            self.counts["skipped: image missing"] += 1
            self._missing_file = self._missing_file or file
        return exists

    @override
    def write(self, folder: Path, tick: Callable[[], None]) -> Sequence[ShardInfo]:
        records = self.checked_records()
        shards: list[ShardInfo] = []
        for first in records:
            part = chain([first], islice(records, self.records_per_shard - 1))
            shards.append(_write_shard(folder / f"shard-{len(shards):06d}.tar", part, tick))
        if not shards:
            raise UserError(
                f"expected records from {type(self).__name__}, got none: check the annotation files"
            )
        return shards

    def checked_records(self) -> Iterator[Record]:
        """Yields the valid records; raises `UserError` if too many images are missing."""
        keys: set[str] = set()
        self._checked.clear()
        for group, images in self.records():
            key, ids = group.key, group.image_ids
            try:
                check(group)
                if key in keys or len(images) != len(ids):
                    raise RecordError("twice" if key in keys else f"{len(images)} images for {ids}")
            except RecordError as error:
                raise UserError(
                    f"expected valid records from {type(self).__name__}, got {key!r} ({error}): "
                    "correct the annotations or the builder"
                ) from error
            keys.add(key)
            yield group, images
        missing, total = self._checked[False], self._checked.total()
        if missing > self.missing * total:
            raise UserError(
                f"expected at most {self.missing:.0%} of {total} images to be missing, got "
                f"{missing}, {self._missing_file} first: download them or correct the folder"
            )


def image_group(image: str, texts: Mapping[str, bool], true: Iterable[str] = (),
                exhaustive: bool = False, key: str | None = None) -> Group:  # fmt: skip
    """Returns the group of one image, with texts and whether they are true; a text is its own id.

    `true` adds true texts; with `exhaustive` they are all of the corpus; `key` replaces the id.
    """
    listed = tuple(texts)
    return Group(
        key=re.sub(r"[^A-Za-z0-9_\-]", "_", key or image),
        image_ids=(image,),
        text_ids=listed,
        texts=listed,
        truth=torch.tensor([list(texts.values())]),
        true_ids=(frozenset(true) | {text for text in listed if texts[text]},),
        exhaustive=exhaustive,
    )


def image_extension(content: bytes) -> str | None:
    """Returns "jpg", "png" or "webp" from the first bytes of an encoded image, or None.

    Example:
        >>> image_extension(bytes.fromhex("ffd8ffe0"))
        'jpg'
    """
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    matches = (name for start, name in _SIGNATURES.items() if content.startswith(start))
    return next(matches, None)


def _write_shard(path: Path, records: Iterator[Record], tick: Callable[[], None]) -> ShardInfo:
    count = images = 0
    with path.open("wb") as stream:
        # Fixed times and owners: the same records give the same bytes, hence the same sha256.
        writer = TarWriter(stream, user="", group="", mtime=0, encoder=False, compress=False)
        with writer:
            for group, sources in records:
                writer.write(_sample(group, sources))
                count, images = count + 1, images + len(sources)
                tick()
    return ShardInfo(path.name, count, images, path.stat().st_size, sha256(path))


def _sample(group: Group, sources: Sequence[bytes | Path]) -> dict[str, Any]:
    contents = [_content(group.key, source) for source in sources]
    extensions = [extension for extension, _ in contents]
    record = json.dumps(encode(group, extensions), ensure_ascii=False, sort_keys=True)
    files = {f"{i}.{extension}": content for i, (extension, content) in enumerate(contents)}
    return {"__key__": group.key, **files, "json": record.encode()}


def _content(key: str, source: bytes | Path) -> tuple[str, bytes]:
    name = f"image of record {key!r}" if isinstance(source, bytes) else str(source)
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise UserError(
            f"expected the image {name} of record {key!r}, got {error.strerror}: "
            "download the images or correct their folder"
        ) from error
    extension = image_extension(content)
    if extension is None:
        raise UserError(
            f"expected a JPEG, PNG or WebP in {name}, got {content[:4]!r}...: convert or replace it"
        )
    return extension, content


def _argument_files(value: Any) -> Iterator[Path]:
    """The existing files among arguments, in lists, mappings and plug-ins, too."""
    if isinstance(value, Configured):
        yield from _argument_files(value.__dict__.get("init_args", {}))
    elif isinstance(value, Mapping):
        yield from _argument_files(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _argument_files(item)
    elif isinstance(value, str | Path) and os.path.isfile(value):
        yield Path(value)


def sha256(path: Path) -> str:
    """Returns the sha256 of a file, in hex; raises `UserError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"expected the file {path}, got {error.strerror}: download it or correct the path"
        ) from error
