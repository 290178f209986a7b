"""Archives: the members that a source needs, each written whole or not at all.

In: a zip or a tar, and a pattern of members. Out: files below a folder, with their sizes.
Never: a file outside that folder, a link, a device, a member that is half there, or a person's file
overwritten.
"""

import bz2
import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from vlmtune.errors import UserError
from vlmtune.sources.ledger import ELSEWHERE, Ledger
from vlmtune.sources.placing import put
from vlmtune.storage.files import writing

# A zip that needs a password or an unknown compression is a RuntimeError; gzip's are OSErrors.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
DAMAGED += (gzip.BadGzipFile, RuntimeError)


class ArchiveError(UserError):
    """What is wrong with an archive, in one line."""


Member = tuple[str, int, Any]
"""Name, bytes, and the open content."""
_OPENERS = {b"\x1f\x8b\x08": gzip.open, b"BZh": bz2.open, b"\xfd7z": lzma.open}
"""How a file with these three bytes at its start is decompressed."""
BLOCK = 512  # of a tar
CHUNK = 2**20


def unpack(
    archive: Path,
    kind: str,
    folder: Path,
    ledger: Ledger,
    members: str,
    strip: int,
    required: bool = True,
) -> dict[Path, int]:
    """Writes the members that match a pattern; returns the files with their bytes.

    An `ArchiveError` says what is wrong with the archive, or, if they are `required`, that it has
    no such members. A `UserError` names a person's file in the place of a member.
    """
    written: dict[Path, int] = {}
    others = []
    read = {"zip": _of_zip, "tar": _of_tar}[kind]
    try:
        for name, size, content in read(archive):
            inner = _inner_path(name, strip)
            if inner is None or not fnmatchcase(name, members):
                others.append(name)
                continue
            path = folder / inner
            is_ours = ledger.wrote(path) or not path.exists()
            if is_ours:
                ledger.will_write(path)
            # Of two members of one name the last one counts.
            _write(path, content, is_ours)
            written[path] = size
    except DAMAGED as error:
        raise ArchiveError(
            f"expected a whole {kind} archive in {archive}, got {error}: get it again"
        ) from error
    if required and not written:
        got = f"others such as {others[0]!r}" if others else "none"
        raise ArchiveError(
            f"expected members like {members!r} in {archive}, got {got}: another archive is meant, "
            "or its source changed, see docs/data.md"
        )
    return written


def _write(path: Path, content: Any, is_ours: bool) -> None:
    """Writes a member, and gives it its name when it is whole.

    `write_atomically` would look through the folder for what killed runs left, at each of a hundred
    thousand images.
    """
    part = path.with_name(f".{path.name}.part")  # hidden, as readers list folders
    with writing(path, ELSEWHERE):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                shutil.copyfileobj(content, file, CHUNK)
            put(part, path, is_ours)
        finally:
            part.unlink(missing_ok=True)


def _of_zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                with opened.open(info) as content:
                    yield info.filename, info.file_size, _Reader(content)


def _of_tar(archive: Path) -> Iterator[Member]:
    with archive.open("rb") as file:
        start = file.read(3)
    decompress = _OPENERS.get(start, open)
    with decompress(archive, "rb") as stream:
        reader: Any = _Reader(stream)
        # As a stream: a compressed tar of 97 GB is read once, from its start to its end.
        with tarfile.open(fileobj=reader, mode="r|") as opened:
            for info in opened:
                content = opened.extractfile(info) if info.isreg() else None
                if content is not None:
                    yield info.name, info.size, content
        # The checksum of the compression is at its end, and `tarfile` takes a cut tar for whole.
        while reader.read(CHUNK):
            pass
        if any(reader.last):
            raise tarfile.ReadError("an archive without its end")


class _Reader:
    """Reads a compressed file, whose errors name the archive, and keeps its last block."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.last = b""

    def read(self, size: int) -> bytes:
        try:
            chunk = self.stream.read(size)
        except OSError as error:  # otherwise the disk that is written would be blamed
            raise tarfile.ReadError(str(error)) from error
        self.last = (self.last + chunk)[-BLOCK:]
        return chunk


def _inner_path(name: str, strip: int) -> PurePosixPath | None:
    """Where a member lies below the folder; None if it may not lie there."""
    path = PurePosixPath(name.replace("\\", "/"))  # zips made on Windows
    parts = path.parts[strip:]
    if path.is_absolute() or ".." in parts or not parts:
        return None
    # What macOS adds to archives.
    last = parts[-1]
    if parts[0] == "__MACOSX" or last == ".DS_Store" or last.startswith("._"):
        return None
    return PurePosixPath(*parts)
