"""One file of remote storage, downloaded in several tries and checked.

In: an address, and the size and sha256 that the file must have. Out: the file on disk.
Never: a file with other content, a wait without end, or a secret in a message.
"""

import contextlib
import errno
import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fsspec.callbacks import Callback
from fsspec.config import conf
from fsspec.core import url_to_fs

from vlmtune.errors import UserError, counted
from vlmtune.storage.remote.address import Address, join

SLOWEST = 50_000
"""Bytes a second: a try that is slower over its whole length is given up."""
CHUNK = 2**16
LARGEST_UNKNOWN = 2**30
"""Bytes that a file of unknown size may have."""
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
TEMPORARY = {408, 425, 429}  # statuses of HTTP below 500 after which the next try may succeed
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
_RANDOM = random.SystemRandom()  # a wait must not change the random numbers of training
# The file systems stay referenced: in a forked process the end of one of its parent would wait for
# a thread that is not there.
_FILE_SYSTEMS: dict[tuple[int, str, float], tuple[Any, str]] = {}
log = logging.getLogger("vlmtune")


class DownloadError(OSError):
    """Why a file could not be downloaded, in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason  # as the errors of local files have it


class RefusedError(DownloadError):
    """The storage answers that it has no such file, or gives it to nobody of these credentials."""


@dataclass(frozen=True)
class Patience:
    """How long a download goes on.

    Before try k + 1 it waits `wait x 2^(k - 1) x u` seconds, with u random from 0.5 to 1.5, so
    that many readers do not ask a tired server at once. It waits longer if the server asks for it
    (Retry-After).

    Attributes:
        tries: Tries before the file is given up.
        timeout: Seconds without a byte after which a try is given up.
        wait: Seconds before the second try.
        longest: Seconds of the longest wait, before the random factor.
    """

    tries: int = 5
    timeout: float = 60.0
    wait: float = 1.0
    longest: float = 60.0

    def pause(self, failed: int, least: float = 0.0) -> float:
        """Returns the seconds to wait after `failed` failed tries, of `least` ones at least."""
        doubled = min(self.longest, self.wait * 2 ** (failed - 1))
        usual = doubled * _RANDOM.uniform(0.5, 1.5)
        # Never less than the server asked for, and not all readers at that very moment.
        least_kept = min(self.longest, least)
        requested = least_kept * _RANDOM.uniform(1.0, 1.5)
        return max(usual, requested)


def download(
    address: Address,
    name: str,
    part: Path,
    size: int | None,
    check: Callable[[Path], None],
    patience: Patience,
) -> None:
    """Downloads a file of a remote folder to the path `part`.

    `check` raises a `DownloadError` if the file is not what it should be; a `size` of None is
    unknown. It fails with a `DownloadError`, a `RefusedError` if no try can succeed, or a
    `UserError` if a package is missing or the disk refuses the file.
    """
    reason = ""
    least = 0.0
    for failed in range(patience.tries):
        if failed:
            log.info("%s/%s: %s; trying again", address, name, reason)
            time.sleep(patience.pause(failed, least))
        # A try that was given up may still write, so each has its own file.
        file = part.with_name(f"{part.name}.{failed}")
        try:
            _try(address, name, file, size, patience.timeout)
            check(file)
            # Flushed before it gets its name: after a power cut no name is of half a file.
            with file.open("rb+") as content:
                os.fsync(content.fileno())
            file.replace(part)
            return
        except UserError:
            raise
        except Exception as error:  # file systems raise what their libraries raise
            if isinstance(error, OSError) and error.errno in _DISK:
                raise UserError(
                    f"expected to write {size or 'some'} bytes to {part.parent}, got "
                    f"{type(error).__name__} ({os.strerror(error.errno)}): free the disk, or name "
                    "another folder or a lower limit for the cache"
                ) from None
            reason = _reason(error, address)
            headers = getattr(error, "headers", None) or {}  # errors of HTTP alone have some
            least = retry_after(headers.get("Retry-After", ""))
            if _is_permanent(error):
                raise RefusedError(f"cannot be read: {reason}") from None
        finally:
            file.unlink(missing_ok=True)
    raise DownloadError(
        f"cannot be read after {counted(patience.tries, 'attempt')}: {reason}"
    ) from None


class _Progress(Callback):
    """Counts the bytes that came, and stops a file system that goes on after it was given up."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.received = 0
        self.abandoned = False

    def relative_update(self, inc: int = 1) -> None:
        self.received += inc
        if self.abandoned or self.received > self.limit:
            raise DownloadError(f"has more than {self.limit} bytes")


def _try(address: Address, name: str, file: Path, size: int | None, timeout: float) -> None:
    """Runs one try in a thread, and gives it up when nothing comes."""
    system, folder = file_system(address, timeout)
    limit = LARGEST_UNKNOWN if size is None else size
    progress = _Progress(limit)
    # The file system of the hub has a fast path of its own, which takes no callback.
    options = {} if address.scheme == "hf" else {"callback": progress}
    done, failures = threading.Event(), []

    # In a thread, as a file system may wait for ever in a call that nothing can interrupt.
    def work() -> None:
        try:
            system.get_file(join(folder, name), str(file), **options)
        except BaseException as error:
            failures.append(error)
        finally:
            if progress.abandoned:
                file.unlink(missing_ok=True)
            done.set()

    threading.Thread(target=work, name="vlmtune download", daemon=True).start()
    start = changed = time.monotonic()
    last = (0, 0, 0)
    try:
        while not done.wait(min(1.0, timeout / 4)):
            now = time.monotonic()
            state = (progress.received, *_state(file))
            if state != last:
                last = state
                changed = now
            if now - changed > timeout:
                raise DownloadError(f"no byte came for {timeout:g} seconds")
            # Of unknown size, what has come so far is what may have taken the time.
            known = max(state[:2]) if size is None else size
            if now - start > timeout + known / SLOWEST:
                raise DownloadError(f"came slower than {SLOWEST} bytes a second")
    finally:
        progress.abandoned = not done.is_set()  # the thread cannot be stopped, only told
    if failures:
        raise failures[0]


def _state(file: Path) -> tuple[int, int]:
    """Size and time of the last change: one of them moves while a file is written."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def check_content(file: Path, size: int | None, checksum: str | None) -> None:
    """Raises a `DownloadError` unless a file has its size and checksum, where these are known.

    A checksum is "sha256:", "md5:" or "git:" (the id of a blob), and the number in hex.
    """
    got = file.stat().st_size
    # Of unknown size too, a file without content is an answer that broke off.
    is_empty = got == 0 and size is None
    if is_empty or size not in (None, got):
        raise DownloadError(f"has {got} bytes, not {size or 'any content'}")
    kind, _, expected = (checksum or "").partition(":")
    if kind and checksum_of(file, kind) != expected:
        raise DownloadError(f"has another {kind} than it should: it changed at its source")


def checksum_of(path: Path, kind: str) -> str:
    """The checksum of a file in hex; `git` is the id of its blob."""
    if kind != "git":
        with path.open("rb") as file:
            return hashlib.file_digest(file, kind).hexdigest()
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def file_system(address: Address, timeout: float) -> tuple[Any, str]:
    """Returns the file system of fsspec for a folder, and the folder's path in it."""
    key = os.getpid(), address.url, timeout
    if key not in _FILE_SYSTEMS:
        try:
            system, folder = url_to_fs(address.url, **_options(address.scheme, timeout))
        except (ImportError, ValueError) as error:
            # An unknown scheme, or one whose package fsspec names: "Install s3fs to access S3".
            reason = address.clean(str(error))
            raise UserError(
                f"expected an address that fsspec reads, got {address} ({reason}): change it, or "
                "pip install what is missing"
            ) from None
        _FILE_SYSTEMS[key] = system, folder
        # gcsfs logs each retry with a traceback, and the error is reported here in one line.
        library = logging.getLogger(type(system).__module__.partition(".")[0])
        if library.level == logging.NOTSET:
            library.setLevel(logging.CRITICAL)
    return _FILE_SYSTEMS[key]


def _options(scheme: str, timeout: float) -> dict[str, Any]:
    """Options of the file system beside those of the user's own settings of fsspec."""
    if scheme not in ("http", "https"):
        return {}
    from aiohttp import ClientTimeout

    # By default aiohttp ends each download after five minutes and reads neither ~/.netrc nor the
    # settings of a proxy.
    limits = ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
    user_settings = conf.get(scheme, {}).get("client_kwargs", {})
    settings = {"trust_env": True, **user_settings, "timeout": limits}
    return {"client_kwargs": settings}


def _is_permanent(error: Exception) -> bool:
    unknown = type(error).__name__ in _NO_CREDENTIALS  # of botocore and google.auth
    if unknown or isinstance(error, FileNotFoundError | PermissionError):
        return True
    status = getattr(error, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in TEMPORARY


def retry_after(header: str) -> float:
    """The seconds after which a server wants another request, by its header; 0 if it is empty.

    Example:
        >>> retry_after("2"), retry_after("soon")
        (2.0, 0.0)
    """
    with contextlib.suppress(ValueError):
        return max(0.0, float(header))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return 0.0


def _reason(error: Exception, address: Address) -> str:
    if isinstance(error, DownloadError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(status := getattr(error, "status", None), int):
        return f"the server answered with status {status}"
    text = address.clean(str(error))
    return f"{type(error).__name__} ({text})" if text else type(error).__name__
