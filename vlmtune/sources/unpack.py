"""Archives: the members that a source needs, each written whole or not at all.

In: a zip or a tar, and a pattern of members. Out: files below a folder, with their sizes.
Never: a file outside that folder, a link, a device, or a member that is half there.
"""

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
from vlmtune.storage.files import writing

# A zip that needs a password or an unknown compression is a RuntimeError; gzip's are OSErrors.
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError)
DAMAGED += (gzip.BadGzipFile, RuntimeError)


class ArchiveError(UserError):
    """What is wrong with an archive, in one line."""


Member = tuple[str, int, Any]
"""Name, bytes, and the open content."""


def unpack(
    archive: Path, kind: str, folder: Path, members: str, strip: int, required: bool = True
) -> dict[Path, int]:
    """Writes the members that match a pattern; returns the files with their bytes.

    A file that was written from this archive is left as it is, so a killed run goes on. An
    `ArchiveError` says what is wrong with the archive, or, if they are `required`, that it has no
    such members.
    """
    written: dict[Path, int] = {}
    came = archive.stat().st_mtime_ns  # files older than it are of another version
    read = {"zip": _of_zip, "tar": _of_tar}[kind]
    try:
        for name, size, content in read(archive):
            inner = _inner_path(name, strip)
            if inner is None or not fnmatchcase(name, members):
                continue
            path = folder / inner
            written[path] = size
            if not _is_written(path, size, came):
                _write(path, content)
    except DAMAGED as error:
        raise ArchiveError(
            f"expected a whole {kind} archive in {archive}, got {error}: get it again"
        ) from error
    if required and not written:
        raise ArchiveError(
            f"expected members like {members!r} in {archive}, got none: its source changed, see "
            "docs/data.md"
        )
    return written


def _write(path: Path, content: Any) -> None:
    """Writes a member, and gives it its name when it is whole.

    `write_atomically` would look through the folder for what killed runs left, at each of a hundred
    thousand images.
    """
    part = path.with_name(f".{path.name}.part")  # hidden, as readers list folders
    with writing(path, "name another folder by --data-root"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            shutil.copyfileobj(content, file, 2**20)
        part.replace(path)


def _is_written(path: Path, size: int, since: int) -> bool:
    """Whether a file has its size, and was written later than the archive."""
    if not path.is_file():
        return False
    status = path.stat()
    return status.st_size == size and status.st_mtime_ns >= since


def _of_zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            if not info.is_dir():
                with opened.open(info) as content:
                    yield info.filename, info.file_size, content


def _of_tar(archive: Path) -> Iterator[Member]:
    # As a stream: a compressed tar of 97 GB is read once, from its start to its end.
    with tarfile.open(archive, "r|*") as opened:
        for info in opened:
            content = opened.extractfile(info) if info.isreg() else None
            if content is not None:
                yield info.name, info.size, content


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
