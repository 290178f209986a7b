"""What every builder shares: writing a corpus whole or not at all, and writing shards."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from webdataset.writer import TarWriter

from vlmtune.config import Configured
from vlmtune.data.schema import MANIFEST, Manifest, RecordError, ShardInfo, check, encode
from vlmtune.errors import UserError
from vlmtune.types import Group

Record = tuple[Group, Sequence[bytes | Path]]


@dataclass(frozen=True)
class Written:
    """What a builder wrote: its shards, where there are any, and counts worth stating."""

    shards: tuple[ShardInfo, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


class Builder(Configured, ABC):
    """Writes a corpus into a folder. Subclasses implement `write` and name their `sources`."""

    @cached_property
    def counts(self) -> Counter[str]:
        """Counts for the manifest, e.g. `self.counts["skipped: no caption"] += 1`."""
        return Counter()

    def sources(self) -> Mapping[str, Path]:
        """The annotation files read, by name; their sha256 goes into the manifest."""
        return {}

    @abstractmethod
    def write(self, folder: Path, tick: Callable[[], None]) -> Written:
        """Writes everything into the empty `folder`, calling `tick` after each record."""

    def build(self, out: Path, progress: bool = True) -> None:
        """Writes the corpus to `out`, whole or not at all.

        The work is done in a hidden folder beside `out`, renamed when it is complete. Where `out`
        already holds the result of the same builder, arguments and sources, it is kept.

        Args:
            out: Folder to write; it must not exist, be empty, or hold this very build.
            progress: Whether to show progress, where stderr is a terminal.

        Raises:
            UserError: `out` holds something else, or a source is missing or not what it should be.
        """
        out = Path(out)
        sources = {name: _sha256(Path(path)) for name, path in self.sources().items()}
        if self._reusable(out, sources):
            return
        self.counts.clear()
        with _temporary_sibling(out) as folder:
            with _ticking(type(self).__name__, progress) as tick:
                written = self.write(folder, tick)
            manifest = Manifest(
                **self._identity(),
                sources=sources,
                shards=written.shards,
                counts=dict(sorted((self.counts + Counter(written.counts)).items())),
            )
            (folder / MANIFEST).write_text(manifest.to_json())
            try:
                folder.rename(out)
            except OSError:
                # Another process was faster.
                if not self._reusable(out, sources):
                    raise

    def _identity(self) -> dict[str, Any]:
        spec = self.spec()
        arguments = json.loads(json.dumps(spec["init_args"], default=str))
        return {"builder": spec["class_path"], "arguments": arguments}

    def _reusable(self, out: Path, sources: Mapping[str, str]) -> bool:
        """Whether `out` holds this very build; says so, and refuses anything else in its place."""
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return False
        found = _read_json(out / MANIFEST)
        expected = {**self._identity(), "sources": dict(sources)}
        if any(found.get(name) != value for name, value in expected.items()):
            raise UserError(
                f"expected {out} to be free or to hold this very build, it holds something else: "
                "choose another folder or remove it"
            )
        for shard in found["shards"]:
            file = out / shard["file"]
            if not file.is_file() or file.stat().st_size != shard["bytes"]:
                raise UserError(
                    f"expected the complete shard {file}, it is missing or truncated: "
                    f"remove {out} and build again"
                )
        print(f"{out} already holds this build; it is kept", file=sys.stderr)
        return True


class ShardBuilder(Builder):
    """Turns the annotations of a corpus into shards; subclasses implement `records`.

    A group is one record, so a minimal-change pair is never split.

    Args:
        records_per_shard: Groups in one tar.
    """

    def __init__(self, records_per_shard: int = 1000) -> None:
        if records_per_shard < 1:
            raise UserError(f"expected records_per_shard >= 1, got {records_per_shard}: raise it")
        self.records_per_shard = records_per_shard

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yields each group with its images, encoded or as files, in the order of `image_ids`."""

    def write(self, folder: Path, tick: Callable[[], None]) -> Written:
        """Writes `shard-000000.tar`, `shard-000001.tar`, ... into `folder`.

        Raises:
            UserError: There are no records, a record breaks the schema, a key occurs twice, or an
                image is missing or not a JPEG, PNG or WebP.
        """
        records = self._checked()
        shards: list[ShardInfo] = []
        for first in records:
            part = chain([first], islice(records, self.records_per_shard - 1))
            shards.append(_write_shard(folder / f"shard-{len(shards):06d}.tar", part, tick))
        if not shards:
            raise UserError(
                f"expected records from {type(self).__name__}, got none: check the annotation files"
            )
        return Written(tuple(shards))

    def _checked(self) -> Iterator[Record]:
        keys: set[str] = set()
        for group, images in self.records():
            try:
                check(group)
            except RecordError as error:
                raise UserError(
                    f"expected valid records, got {group.key!r} from {type(self).__name__} "
                    f"({error}): correct the annotations or the builder"
                ) from error
            if group.key in keys:
                raise UserError(
                    f"expected each key once, got {group.key!r} twice from {type(self).__name__}: "
                    "make keys unique"
                )
            if len(images) != len(group.image_ids):
                raise UserError(
                    f"expected {len(group.image_ids)} images in record {group.key!r}, got "
                    f"{len(images)}: give one per image id"
                )
            keys.add(group.key)
            yield group, images


def _read_json(path: Path) -> dict[str, Any]:
    """The object a JSON file holds, or an empty one where there is no such file."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def image_extension(content: bytes) -> str | None:
    """Returns "jpg", "png" or "webp" from the first bytes of an encoded image, or None.

    Example:
        >>> image_extension(bytes.fromhex("ffd8ffe0"))
        'jpg'
    """
    if content.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return None


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
    return ShardInfo(path.name, count, images, path.stat().st_size, _sha256(path))


def _sample(group: Group, sources: Sequence[bytes | Path]) -> dict[str, Any]:
    contents = [_content(group.key, source) for source in sources]
    extensions = [extension for extension, _ in contents]
    record = json.dumps(encode(group, extensions), ensure_ascii=False, sort_keys=True)
    files = {f"{i}.{extension}": content for i, (extension, content) in enumerate(contents)}
    return {"__key__": group.key, **files, "json": record.encode()}


def _content(key: str, source: bytes | Path) -> tuple[str, bytes]:
    """The bytes of an image as they are, and the extension they deserve."""
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


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"expected the file {path}, got {error.strerror}: download it or correct the path"
        ) from error


@contextlib.contextmanager
def _temporary_sibling(out: Path) -> Iterator[Path]:
    """A fresh folder beside `out`, removed unless it was renamed."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise UserError(
            f"expected to write beside {out}, got {error.strerror}: choose another folder"
        ) from error
    # mkdtemp gives 0700; a corpus is meant to be read by others as the umask allows.
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _ticking(name: str, show: bool) -> Iterator[Callable[[], None]]:
    """Counts records on stderr while they are written, where stderr is a terminal."""
    console = Console(stderr=True) if show else Console(file=io.StringIO())
    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f} records"))
    visible = show and console.is_terminal
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not visible) as bar:
        task = bar.add_task(name, total=None)
        yield lambda: bar.advance(task)
