"""A folder in remote storage, whose files are read through a local cache.

In: a URL of any scheme of fsspec. Out: its files, open for reading, and the next ones downloaded
in the background. Never: a file that differs from its description, or the bytes of one in memory.
"""

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from vlmtune.errors import UserError
from vlmtune.storage.remote import CACHE_BYTES
from vlmtune.storage.remote.address import Address
from vlmtune.storage.remote.cache import FileCache
from vlmtune.storage.remote.download import (
    DownloadError,
    Patience,
    RefusedError,
    check_content,
    download,
)

CACHE = "~/.cache/vlmtune/shards"
FORGIVEN = 300.0
"""Seconds after which a reader asks again for a file that could not be downloaded."""
log = logging.getLogger("vlmtune")


class RemoteFolder:
    """Reads the files of a folder in remote storage.

    Args:
        url: The folder, such as `s3://bucket/shards`; see `Address`.
        cache: Folder of the local copies; None for `~/.cache/vlmtune/shards`.
        cache_bytes: Bytes that they may take.
        patience: When a download is given up.
    """

    def __init__(
        self,
        url: str,
        cache: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        patience: Patience | None = None,
    ) -> None:
        self.address = Address(url)
        self.cache = FileCache(Path(cache or CACHE).expanduser(), cache_bytes)
        self.patience = patience or Patience()
        self._read_ahead = _Ahead()
        self._failed: dict[str, tuple[float, str]] = {}

    def __str__(self) -> str:
        return str(self.address)

    def copy(self, name: str) -> Path:
        """Returns the local copy of a small JSON file without a checksum, such as a manifest.

        It is downloaded at each call. If the storage fails, the copy of an earlier call serves.
        """
        key = self._digest(name)

        def fetch(part: Path) -> None:
            download(self.address, name, part, None, _check_json, self.patience)

        try:
            return self.cache.renew(key, fetch)
        except DownloadError as error:
            path = self.cache.renewed(key)
            if isinstance(error, RefusedError) or not path.is_file():
                raise UserError(
                    f"expected {name} in {self}, got none: it {error}; name another address, or "
                    "try again when the storage answers"
                ) from None
            log.warning("%s/%s %s; reading the copy of an earlier run", self, name, error)
            return path

    def file(self, name: str, size: int, sha256: str, checked: bool = True) -> "RemoteFile":
        """Returns a file of the folder; unless `checked`, its sha256 is only of its description."""
        if checked:
            return RemoteFile(self, name, size, sha256, sha256)
        # The key of an unchecked file is not its sha256, so nobody takes it for a checked one.
        key = self._digest(f"{name} {size} {sha256}")
        return RemoteFile(self, name, size, key, None)

    @property
    def _ahead(self) -> "_Ahead":
        if self._read_ahead.process != os.getpid():  # its thread stayed in the forked process
            self._read_ahead = _Ahead()
        return self._read_ahead

    def _digest(self, what: str) -> str:
        """Identifies something of this folder: another user or query may get another content."""
        return hashlib.sha256(f"{self.address.given}/{what}".encode()).hexdigest()

    def open(self, file: "RemoteFile") -> BinaryIO:
        """Opens a file, after downloading it if the cache lacks it, or has it changed.

        It is in use, and stays in the cache, until it is closed.
        """
        opened = self._ahead.take(file.key) or self._open(file, wait=False)
        if opened is None:
            self.free()  # what is read now comes before what is read next
            opened = self._open(file)
        assert opened is not None
        return opened

    def expect(self, files: Sequence["RemoteFile"]) -> None:
        """Downloads `files` in the background, one at a time, while the cache has room.

        They count as in use until they are opened, or until another call leaves them out. Files
        that another reader downloads already are left to it.
        """
        self._ahead.expect(self, files)

    def free(self) -> None:
        """Closes the files that no reader has opened yet, after the download that goes on."""
        self._ahead.expect(self, [])
        self._ahead.wait()

    def _open(self, file: "RemoteFile", wait: bool = True) -> BinaryIO | None:
        # Else each record of a missing tar would wait for all tries again.
        until, reason = self._failed.get(file.key, (0.0, ""))
        if time.monotonic() < until:
            raise DownloadError(reason)

        def fetch(part: Path) -> None:
            checksum = None if file.sha256 is None else f"sha256:{file.sha256}"
            check = partial(check_content, size=file.size, checksum=checksum)
            download(self.address, file.name, part, file.size, check, self.patience)

        try:
            return self.cache.open(file.key, file.size, fetch, wait, file.sha256)
        except DownloadError as error:
            forgiven_at = time.monotonic() + FORGIVEN
            self._failed[file.key] = (forgiven_at, str(error))
            raise


@dataclass(frozen=True)
class RemoteFile:
    """A file of a remote folder: its name, bytes, key in the cache and sha256, if known.

    `str` gives its address.
    """

    folder: RemoteFolder
    name: str
    size: int
    key: str
    sha256: str | None

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"

    @property
    def local(self) -> Path:
        """The local copy. It is there while the file is open."""
        return self.folder.cache.folder / self.key

    @property
    def fits(self) -> bool:
        """Whether the cache has the file, or room for it beside the files in use."""
        return self.local.is_file() or self.folder.cache.has_room(self.size)

    def open(self, mode: str = "rb", buffering: int = -1) -> BinaryIO:
        """Opens the local copy for reading, as `Path.open` does. See `RemoteFolder.open`."""
        assert mode == "rb", "a remote file is read alone"
        return self.folder.open(self)


class _Ahead:
    """Files that are opened before they are needed, by a thread that ends when it has them."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()  # for all of the following
        self._thread: threading.Thread | None = None
        self._next: list[RemoteFile] = []
        self._opened: dict[str, BinaryIO] = {}

    def __reduce__(self) -> tuple[type["_Ahead"], tuple[()]]:
        return _Ahead, ()  # another process has its own thread and files

    def expect(self, folder: RemoteFolder, files: Sequence["RemoteFile"]) -> None:
        # A file that is open is in use: those that are no longer wanted must not fill the cache.
        with self._lock:
            wanted = {file.key for file in files}
            unwanted = self._opened.keys() - wanted
            for key in unwanted:
                opened = self._opened.pop(key)
                opened.close()
            self._next = [file for file in files if file.key not in self._opened]
            if self._next and self._thread is None:
                self._thread = threading.Thread(target=self._run, args=[folder], daemon=True)
                self._thread.start()

    def wait(self) -> None:
        thread = self._thread  # read once, as it becomes None when the thread ends
        if thread is not None:
            thread.join()

    def take(self, key: str) -> BinaryIO | None:
        with self._lock:
            self._next = [file for file in self._next if file.key != key]
            return self._opened.pop(key, None)

    def _run(self, folder: RemoteFolder) -> None:
        while True:
            with self._lock:
                if not self._next:
                    self._thread = None
                    return
                file = self._next[0]
            # The download takes long, and `take` must not wait for it: it runs without the lock.
            opened = None
            # Whoever needs the file gets the error.
            with contextlib.suppress(DownloadError, UserError):
                opened = folder._open(file, wait=False)
            with self._lock:
                # Meanwhile another call of `expect` may have left the file out.
                is_wanted = file in self._next
                if opened is not None and is_wanted:
                    self._opened[file.key] = opened
                elif opened is not None:
                    opened.close()
                self._next = [other for other in self._next if other != file]


def _check_json(file: Path) -> None:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise DownloadError("is not JSON") from None
