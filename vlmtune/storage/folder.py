"""A folder built once and checked: the feature store and the similarity cache are such folders.

In: a key, and a function that writes files. Out: the folder, with sizes and sha256 in `meta.json`.
Never: half a folder, or two processes that build the same folder.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from filelock import FileLock, Timeout
from pydantic import InstanceOf
from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.storage.files import (
    Count,
    check_shape,
    read_json,
    regular,
    remove,
    sha256_of,
    write_atomically,
)

VERSION = 1
"""Version of the layouts; it is part of every key."""
ALWAYS_CHECKED = 256 * 2**20
"""A folder of up to so many bytes is checked by sha256 at each opening, others when touched."""
META = "meta.json"

T = TypeVar("T")
log = logging.getLogger("vlmtune")


class _Entry(TypedDict):
    """What a file of a folder must be."""

    bytes: Count
    sha256: str
    mtime_ns: int


class _Meta(TypedDict):
    """The content of `meta.json` that opening reads."""

    key: dict[str, Any]
    files: dict[str, _Entry]


class DamagedError(Exception):
    """Why a folder is not the one it should be."""


class FolderWriter:
    """Writes the files of a new folder and computes their checksums; `stack` closes the files."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._files: dict[str, tuple[BinaryIO, Any]] = {}  # open, each with its checksum so far
        self._linked: dict[str, dict[str, Any]] = {}

    def append(self, name: str, data: Any) -> None:
        """Adds bytes to the end of a file."""
        if name not in self._files:
            file = self._stack.enter_context((self.folder / name).open("wb"))
            self._files[name] = file, hashlib.sha256()
        file, checksum = self._files[name]
        file.write(data)
        file.flush()  # so that a full disk is met here, not at the end
        checksum.update(data)

    def link(self, name: str, file: Path, entry: Mapping[str, Any]) -> None:
        """Adds a finished file, with what its own `meta.json` says of it; copies where it must."""
        try:
            os.link(file, self.folder / name)
        except OSError:
            shutil.copy2(file, self.folder / name)
        self._linked[name] = dict(entry)

    def finish(self, key: Mapping[str, Any], **facts: Any) -> None:
        """Writes `meta.json`: the key, the facts, what all files must be, and its own sha256."""
        files = dict(self._linked)
        for name, (_, checksum) in self._files.items():
            status = (self.folder / name).stat()
            files[name] = {
                "bytes": status.st_size,
                "sha256": checksum.hexdigest(),
                "mtime_ns": status.st_mtime_ns,
            }
        meta = {
            "key": dict(key),
            **facts,
            "files": files,
            "written_with": {"vlmtune": version("vlmtune"), "torch": version("torch")},
        }
        meta["sha256"] = digest(meta)
        text = json.dumps(meta, indent=2)
        (self.folder / META).write_text(f"{text}\n", encoding="utf-8")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[FolderWriter]:
    """Gives the writer of a folder that gets its name `path` when the block succeeds."""
    with write_atomically(path) as temporary, contextlib.ExitStack() as stack:
        temporary.mkdir()
        yield FolderWriter(temporary, stack)


def open_or_build(
    path: Path, kind: str, open_it: Callable[[], T], write: Callable[[FolderWriter], None]
) -> T:
    """Opens a folder, after building it if it is missing or damaged.

    If two processes want the same folder, the second waits, then opens it.

    Args:
        path: The folder; its parent is made if needed.
        kind: What it holds, for messages.
        open_it: Opens it; raises a `DamagedError` if it cannot.
        write: Writes the files, and calls `finish`.
    """
    with contextlib.suppress(DamagedError):
        return open_it()
    with locked(path):
        try:
            return open_it()  # another process has built it meanwhile
        except DamagedError as reason:
            if path.exists():
                log.warning("Rebuilding the %s %s: %s", kind, path, reason)
        for leftover in path.parent.glob(f".{path.name}.*.part"):  # of a killed process
            remove(leftover)
        with new_folder(path) as writer:
            write(writer)
        return open_it()


def read_meta(
    folder: Path, key: Mapping[str, Any] | None, files: Sequence[str], shape: Any = Any
) -> dict[str, Any]:
    """Returns the content of `meta.json` after checking the files.

    It is a `DamagedError` if the folder lacks one of `files`, was changed, has another `key` (None
    accepts any) or facts of another `shape` (see `check_shape`).
    """
    path = folder / META
    with _sound(META):
        meta = read_json(path, META)
        check_shape(meta, _Meta, path, META)
        check_shape(meta, shape, path, META)
    # Its own sha256 is of everything else in the file.
    stated = meta.pop("sha256", None)
    flaw = f"{META} was changed after it was written"
    if stated == digest(meta):
        flaw = _flaw(folder, meta, key, files)
    if flaw is not None:
        raise DamagedError(flaw)
    return meta


def _flaw(
    folder: Path, meta: dict[str, Any], key: Mapping[str, Any] | None, files: Sequence[str]
) -> str | None:
    """What is wrong with a folder, found by cheap checks first."""
    if key is not None and meta["key"] != key:
        return "it belongs to another key"
    entries = meta["files"]
    for name in files:
        if name not in entries:
            return f"{META} does not list {name}"
    # A sha256 reads the whole file. In a large folder it is computed where a time has changed.
    size = sum(entry["bytes"] for entry in entries.values())
    is_small = size <= ALWAYS_CHECKED
    for name, entry in entries.items():
        reason = _damage(folder / name, entry, is_small)
        if reason is not None:
            return f"{name} {reason}"
    return None


def read_names(folder: Path, name: str) -> tuple[str, ...]:
    """Returns the strings in a JSON file of a folder; a `DamagedError` if it holds others."""
    # `InstanceOf` accepts half a surrogate pair, which JSON may hold.
    with _sound(name):
        return read_json(folder / name, name, shape=tuple[InstanceOf[str], ...])


@contextlib.contextmanager
def _sound(name: str) -> Iterator[None]:
    """A file of a folder that cannot be read is damage, which is built again, not an error."""
    try:
        yield
    except UserError as error:
        raise DamagedError(f"{name} is missing or has another layout") from error


def _damage(path: Path, entry: Mapping[str, Any], small: bool) -> str | None:
    try:
        status = path.stat()
        if status.st_size != entry["bytes"]:
            return f"has {status.st_size} bytes, not {entry['bytes']}"
        if not small and status.st_mtime_ns == entry["mtime_ns"]:
            return None
        checksum = sha256_of(regular(path))
        return None if checksum == entry["sha256"] else "was changed after it was written"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lets one process at a time build `path`; the others wait, or get a `Timeout`."""
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)  # a first try, so that the log names the wait
    except Timeout:
        if not wait:
            raise
        log.info("Waiting for another process that builds %s", path)
        lock.acquire()
    except OSError as error:
        raise UserError(
            f"expected a folder that can be written, got {path.parent} ({error.strerror}): "
            "choose another folder, or another HOME if it is in ~/.cache"
        ) from error
    try:
        yield
    finally:
        lock.release()


def digest(values: Any) -> str:
    """Returns the sha256 of JSON values, in hex."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
