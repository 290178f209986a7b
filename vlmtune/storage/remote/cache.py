"""A folder of whole files with a limit of bytes, which several processes share.

In: a key, a size, and a function that downloads the file. Out: the file, open for reading.
Never: a half-written or changed file, two downloads of one file at a time, or the removal of a
file in use.

A file lies there under its key and was checked before it got that name. `<key>.checked` says at
which size, time of change and inode; at others it is checked again. Whoever downloads it holds the
lock `<key>.lock`. Whoever reads it holds a shared lock on the file itself. The kernel frees both
when a process ends, whatever ended it. A file's last access is its last use.
"""

import contextlib
import hashlib
import importlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from filelock import FileLock, Timeout

from vlmtune.errors import UserError
from vlmtune.storage.files import beside, remove_leftovers, writing
from vlmtune.storage.remote.download import DownloadError

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows has none
    fcntl = importlib.import_module("fcntl")
KEY = "[0-9a-f]{64}"
"""Names of files in the cache; others in the folder are never touched."""
log = logging.getLogger("vlmtune")


class FileCache:
    """Keeps files up to a limit of bytes; the least recently used ones go first.

    Files in use are never removed. If they alone are more than the limit, the cache exceeds it and
    warns once.

    Args:
        folder: Where the files lie. Processes that share it share the files.
        limit: Bytes that they may take.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._warned = False  # the warning comes once, not with each file

    def open(
        self,
        key: str,
        size: int,
        download: Callable[[Path], None],
        wait: bool = True,
        sha256: str | None = None,
    ) -> BinaryIO | None:
        """Opens a file, after downloading it if it is not there or not as it was downloaded.

        Args:
            key: The file's name in the cache; equal keys are equal files.
            size: Its bytes.
            download: Writes the checked file to a path, or raises.
            wait: Whether the caller needs it now. If so, the call waits while another process
                downloads the file, and the cache may exceed its limit. If not, the result is None
                if another process downloads the file, or if it does not fit beside files in use.
            sha256: The sha256 of its content; None if it is not known.

        Returns:
            The file, which is in use until it is closed.
        """
        with self._reported():
            file = self._stored(key, size, sha256)
            if file is not None:
                return file
            started = time.time_ns()  # what failed later failed for this caller, too
            with contextlib.suppress(Timeout), self._locked(key, wait):
                # Another process may have downloaded it meanwhile.
                file = self._stored(key, size, sha256, check=True)
                if file is None:
                    self._raise_failure(key, started)
                    file = self._download(key, size, download, wait)
                return file
        return None

    def _raise_failure(self, key: str, started: int) -> None:
        """Fails as the download that the caller waited for: else all that wait fail in turn."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            text = self._failure(key).read_text(encoding="utf-8")
            when, reason = text.split(" ", 1)
            # A failure of the future was written before the clock was set back.
            if started <= int(when) <= time.time_ns():
                raise DownloadError(reason)

    def _failure(self, key: str) -> Path:
        return self.folder / f"{key}.failed"

    def _stored(
        self, key: str, size: int, sha256: str | None, check: bool = False
    ) -> BinaryIO | None:
        """Opens a file if it is there as it was checked last; with `check` it is checked again."""
        path = self.folder / key
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        _hold(file)
        status = os.fstat(file.fileno())  # of the open file, whatever has its name by now
        # It may have been removed before it was locked, or something else has changed it.
        sound = status.st_nlink > 0 and status.st_size == size
        if not sound or not self._is_whole(key, sha256, file, check):
            file.close()
            return None
        with contextlib.suppress(PermissionError):  # another user's file
            os.utime(file.fileno(), ns=(time.time_ns(), status.st_mtime_ns))
        return file

    def _is_whole(self, key: str, sha256: str | None, file: BinaryIO, check: bool) -> bool:
        """Whether a file is the one that was checked last; with `check`, or has its sha256."""
        if sha256 is None:
            return True
        with contextlib.suppress(OSError, ValueError):
            note = (self.folder / f"{key}.checked").read_text(encoding="utf-8")
            if note == _identity(file):
                return True
        if not check:
            return False
        if hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != sha256:
            log.warning(
                "%s was changed after its download: it is downloaded again", self.folder / key
            )
            return False
        file.seek(0)  # the sum has read to the end
        self._note_checked(key, file)
        return True

    def _note_checked(self, key: str, file: BinaryIO) -> None:
        (self.folder / f"{key}.checked").write_text(_identity(file), encoding="utf-8")

    def renew(self, key: str, download: Callable[[Path], None]) -> Path:
        """Downloads a file that no check describes, such as a manifest, at each call.

        It does not count towards the limit. If `download` raises, the earlier file stays.
        """
        path = self.renewed(key)
        part = beside(path, "part")
        with self._reported():
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            download(part)
            part.replace(path)
            return path

    def renewed(self, key: str) -> Path:
        """Returns where the file of the last call of `renew` that succeeded lies, if one did."""
        return self.folder / "copies" / f"{key}.json"

    def has_room(self, size: int) -> bool:
        """Tells whether `size` bytes fit beside the files that are in use."""
        with self._reported(), self._locked(""):
            return self._fits(size)

    def _fits(self, size: int) -> bool:
        # Files that nobody reads do not count: they make room for what is wanted.
        reserved = self._reserved()
        in_use = sum(status.st_size for path, status in self._files() if not _free(path))
        return reserved + in_use + size <= self.limit

    def _download(
        self, key: str, size: int, download: Callable[[Path], None], needed: bool
    ) -> BinaryIO | None:
        for leftover in self.folder.glob(f".{key}.*.part*"):  # of a killed process
            leftover.unlink(missing_ok=True)
        # The name reserves the bytes.
        part = self.folder / f".{key}.{size}.{os.getpid()}.part"
        with self._locked(""):
            if not needed and not self._fits(size):
                return None
            # A reader may have opened a file since `_fits`: what is not needed must not exceed.
            if not self._make_room(size, needed) and not needed:
                return None
            part.touch()  # the bytes are reserved before the lock is freed
        try:
            download(part)
            file = part.open("rb")
            _hold(file)  # it is in use before others can see it
            part.replace(self.folder / key)
            self._note_checked(key, file)
            self._failure(key).unlink(missing_ok=True)
            return file
        except DownloadError as error:
            self._failure(key).write_text(f"{time.time_ns()} {error}", encoding="utf-8")
            raise
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, size: int, needed: bool) -> bool:
        # Downloads are counted first: one that ends meanwhile is then counted as a file.
        taken = self._reserved() + size
        files = sorted(self._files(), key=lambda file: file[1].st_atime_ns)  # the last use
        taken += sum(status.st_size for _, status in files)
        for path, status in files:
            if taken <= self.limit:
                return True
            if _free(path, remove=True):
                taken -= status.st_size
                for note in self.folder.glob(f"{path.name}.*"):  # such as an index of the file
                    if note.suffix != ".lock":
                        note.unlink(missing_ok=True)
        if taken > self.limit and needed and not self._warned:
            self._warned = True
            log.warning(
                "The cache %s takes %d bytes, more than its limit of %d, because they are all in "
                "use. Raise cache_bytes, or lower num_workers.",
                self.folder,
                taken,
                self.limit,
            )
        return taken <= self.limit

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The whole files."""
        for entry in os.scandir(self.folder):
            if re.fullmatch(KEY, entry.name):
                with contextlib.suppress(FileNotFoundError):
                    yield Path(entry.path), entry.stat()

    def _reserved(self) -> int:
        """Bytes of the downloads that go on; what killed processes left is removed."""
        sizes = {}
        for part in self.folder.glob(".*.part*"):
            key, size = part.name.split(".")[1:3]
            try:
                with self._locked(key, wait=False):
                    part.unlink(missing_ok=True)
            except Timeout:
                sizes[key] = int(size)
        return sum(sizes.values())

    @contextlib.contextmanager
    def _locked(self, key: str, wait: bool = True) -> Iterator[None]:
        """Holds the lock of a file, or of the whole folder for the key ""."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{key or 'all'}.lock"
        timeout = -1 if wait else 0  # -1 waits without end
        with FileLock(file, timeout=timeout):
            yield

    def _reported(self) -> contextlib.AbstractContextManager[None]:
        return writing(self.folder, "name another one in `cache`")


def _identity(file: BinaryIO) -> str:
    """Another text when a file is written again or copied."""
    status = os.fstat(file.fileno())
    return json.dumps([status.st_size, status.st_mtime_ns, status.st_ino])


def _hold(file: BinaryIO) -> None:
    """Marks an open file as in use, until it is closed."""
    if fcntl is None:
        raise UserError(
            "expected Linux or macOS for files of remote storage, got a system without flock: "
            "copy the files to this machine"
        )
    fcntl.flock(file, fcntl.LOCK_SH)


def _free(path: Path, remove: bool = False) -> bool:
    """Tells whether nobody uses a file, and removes it then on request."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except PermissionError:  # another user's file
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
