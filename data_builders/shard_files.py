"""One shard: encoded records and their images go in, a tar comes out. Worker processes run it.

In: a chunk of records. Out: the tar, written whole, and the images that cannot be used.
Never: a record with such an image, or other bytes for the same records.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from webdataset.writer import TarWriter

from data_builders.missing_files import obtain
from vlmtune.data.images import open_image
from vlmtune.data.schema import RecordError, ShardInfo
from vlmtune.errors import UserError
from vlmtune.storage.files import regular, remove, sha256_of, write_atomically

Source = bytes | Path
T = TypeVar("T")
_SIGNATURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png"}


class Chunk(NamedTuple):
    """The records of one shard: key, JSON without the names of the images, and the images."""

    number: int
    records: Sequence[tuple[str, dict[str, Any], Sequence[Source]]]

    @property
    def file(self) -> str:
        """The name of the shard."""
        return f"shard-{self.number:06d}.tar"


class Fault(NamedTuple):
    """An image that cannot be used, by its record in the chunk and its place in the record."""

    record: int
    image: int
    reason: str
    detail: str


class Written(NamedTuple):
    """What came of a chunk; `info` is None if every record was left out.

    `digest` is of the records and the state of their image files.
    """

    number: int
    digest: str
    info: ShardInfo | None
    faults: Sequence[Fault]


def write_shard(folder: Path, chunk: Chunk, earlier: Written | None = None) -> Written:
    """Writes a shard without the records that have an unusable image.

    `earlier` is what an earlier build wrote. It stays if neither the records nor their image files
    have changed and the shard is undamaged.
    """
    path, digest = folder / chunk.file, chunk_digest(chunk)
    if earlier is not None and earlier.digest == digest and _undamaged(path, earlier.info):
        return earlier
    faults: list[Fault] = []
    samples = _samples(chunk, faults)
    first = next(samples, None)
    if first is None:
        remove(path)
        return Written(chunk.number, digest, None, faults)
    records = images = 0
    with write_atomically(path) as temporary, temporary.open("wb") as stream:
        # Fixed times and owners: the same records give the same bytes, hence the same sha256.
        writer = TarWriter(stream, user="", group="", mtime=0, encoder=False, compress=False)
        with writer:
            for sample in chain([first], samples):
                writer.write(sample)
                records, images = records + 1, images + len(sample) - 2
    info = ShardInfo(path.name, records, images, path.stat().st_size, sha256(path))
    return Written(chunk.number, digest, info, faults)


def chunk_digest(chunk: Chunk) -> str:
    """Returns the sha256 of the records, and of sizes and times of their image files."""
    state = hashlib.sha256()
    for key, record, sources in chunk.records:
        images = [_state(source) for source in sources]
        state.update(json.dumps([key, record, images], sort_keys=True).encode())
    return state.hexdigest()


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


def stored_image(content: bytes) -> bytes:
    """Returns an image as shards hold it: JPEG, PNG and WebP as they are, others as PNG.

    Raises:
        RecordError: It cannot be decoded, which is tried of each.
    """
    image = open_image(content)
    if image_extension(content) is not None:
        return content
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def sha256(path: Path) -> str:
    """Returns the sha256 of a file, in hex; raises `UserError` if it cannot be read."""
    try:
        return sha256_of(regular(path))
    except OSError as error:
        raise UserError(
            f"expected the file {path}, got {error.strerror}: {obtain(path)}"
        ) from error


def summed(lines: Iterable[str]) -> str:
    """Returns the sha256 of lines of text, in hex."""
    state = hashlib.sha256()
    for line in lines:
        state.update(f"{line}\n".encode())
    return state.hexdigest()


def all_named(*parts: Mapping[str, T]) -> dict[str, T]:
    """Returns all entries; one whose name is taken gets a number, so that none is lost.

    Example:
        >>> all_named({"rows.csv": "a"}, {"rows.csv": "b"})
        {'rows.csv': 'a', 'rows.csv (2)': 'b'}
    """
    entries: dict[str, T] = {}
    for part in parts:
        for name, value in part.items():
            key = name
            number = 1
            while key in entries:
                number += 1
                key = f"{name} ({number})"
            entries[key] = value
    return entries


def listed_image(file: Path, folder: Path) -> str:
    """The name, size and time of an image file in a folder, which change if the image does."""
    name = file.relative_to(folder)
    if not file.is_file():
        return f"{name} None"
    status = file.stat()
    return f"{name} {status.st_size} {status.st_mtime_ns}"


def _samples(chunk: Chunk, faults: list[Fault]) -> Iterator[dict[str, Any]]:
    """The members of each record; a record with an unusable image adds to `faults` instead."""
    for number, (key, record, sources) in enumerate(chunk.records):
        files: dict[str, bytes] = {}
        images: list[dict[str, Any]] = []
        for i, source in enumerate(sources):
            content = _read(source)
            if isinstance(content, bytes):
                file = f"{i}.{image_extension(content)}"
                files[file] = content
                images.append({**record["images"][i], "file": file})
            else:
                faults.append(Fault(number, i, *content))
        # A record with some of its images would say something else.
        if len(images) == len(sources):
            whole = record | {"images": images}
            encoded = json.dumps(whole, ensure_ascii=False, sort_keys=True).encode()
            yield {"__key__": key, **files, "json": encoded}


def _read(source: Source) -> bytes | tuple[str, str]:
    """The content of an image, or the reason why it cannot be used, with details."""
    if isinstance(source, Path):
        try:
            content = regular(source).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return "image missing", ""
        except OSError as error:
            return "image broken", error.strerror or type(error).__name__
    else:
        content = source
    try:
        return stored_image(content)
    except RecordError as error:
        return "image broken", str(error).removeprefix("image refused: ")


def _state(source: Source) -> Any:
    """What changes if an image does."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    try:
        status = source.stat()
    except OSError:
        return [str(source)]
    return [str(source), status.st_size, status.st_mtime_ns]


def _undamaged(path: Path, info: ShardInfo | None) -> bool:
    if info is None:
        return True
    return path.is_file() and path.stat().st_size == info.bytes and sha256(path) == info.sha256
