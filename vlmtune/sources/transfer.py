"""One file of a server: resumed where an earlier run stopped, checked, then renamed.

In: addresses of the same file, and what is known of it. Out: the file, noted in the ledger.
Never: a page in place of a file, half a file, a wait without end, or a secret in a message.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import requests

from vlmtune.errors import UserError
from vlmtune.sources.addresses import HAND, ServerRequest, hub_page, request_of
from vlmtune.sources.ledger import Ledger
from vlmtune.storage.files import writing
from vlmtune.storage.remote.address import without_credentials
from vlmtune.storage.remote.download import (
    DownloadError,
    Patience,
    RefusedError,
    check_content,
    retry_after,
)

CHUNK = 2**16
PROGRESS = 2**20
"""Bytes after which a broken try does not count: a long download may break many times."""
WINDOW, SLOWEST = 60.0, 1000
"""A try is given up when fewer than `SLOWEST` bytes a second came in `WINDOW` seconds."""
_AGAIN = {408, 425, 429}  # statuses below 500 after which another try may succeed
_PAGE = (b"<!doctype html", b"<html")
_QUOTA = (b"quota", b"too many users")
Advance = Callable[[int], None]
log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class WantedFile:
    """A file that has to come.

    Attributes:
        path: Where it will lie.
        addresses: Where it may come from, the first one first.
        bytes: Its size; None if it is not known.
        checksum: As in the YAML; None if it is not known.
        check: Looks at the content; raises a `DownloadError`.
    """

    path: Path
    addresses: tuple[str, ...]
    bytes: int | None = None
    checksum: str | None = None
    check: Callable[[Path], None] | None = None


class Downloader:
    """Fetches files, one connection pool for all threads that share it.

    Args:
        ledger: Notes what came.
        patience: Tries, and the seconds between them.
    """

    def __init__(self, ledger: Ledger, patience: Patience | None = None) -> None:
        self.ledger = ledger
        self.patience = patience or Patience()
        self._session = requests.Session()  # one connection for many small images
        self._unreachable: set[str] = set()  # hosts without an answer in all tries of a file
        # Compressed transfers have another length than the file, and cannot be resumed.
        agent = f"vlmtune/{version('vlmtune')}"
        self._session.headers.update({"User-Agent": agent, "Accept-Encoding": "identity"})

    def fetch(self, wanted: WantedFile, advance: Advance = lambda count: None) -> None:
        """Brings a file to its path; `advance` is called with the bytes that came.

        It fails with a `DownloadError` that says why each address did not give the file.
        """
        reasons = []
        for address in wanted.addresses:
            if address.startswith(HAND):
                reasons.append(
                    "a person has to get it by its steps, then name its folder by --from"
                )
                continue
            request = request_of(address)
            try:
                self._fetch(wanted, request, advance)
                return
            except DownloadError as error:
                reasons.append(f"{without_credentials(request.shown)}: {error}")
        raise DownloadError("; ".join(reasons))

    def _fetch(self, wanted: WantedFile, request: ServerRequest, advance: Advance) -> None:
        part = wanted.path.with_name(f".{wanted.path.name}.part")
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        # Without a network each of many images would otherwise take all tries.
        host = urlsplit(request.url).netloc
        tries = 1 if host in self._unreachable else self.patience.tries
        failed = 0
        while True:
            before = _size(part)
            least = 0.0  # seconds that the server asks to wait
            try:
                self._try(request, part, wanted.bytes, advance)
                _check(part, wanted)
                break
            except RefusedError:
                raise
            except _BrokenError as error:
                # What came is kept: the next try adds the rest.
                reason, least = str(error), error.retry_after
                reached = not isinstance(error, _UnreachableError)
            except DownloadError as error:
                _forget(part)
                reason = str(error)
                reached = True
                # A whole file with wrong content rarely becomes right.
                failed = max(failed, tries - 2)
            failed = 0 if _size(part) - before > PROGRESS else failed + 1
            if failed >= tries:
                if not reached and not _size(part):
                    self._unreachable.add(host)
                raise DownloadError(f"{reason} ({failed} tries)")
            pause = self.patience.pause(max(failed, 1), least)
            log.info("%s: %s; next try in %.0f s", wanted.path.name, reason, pause)
            time.sleep(pause)
        self._unreachable.discard(host)
        self._keep(wanted, request, part)

    def _keep(self, wanted: WantedFile, request: ServerRequest, part: Path) -> None:
        # Asked before the new line is written: then the ledger would know the new file alone.
        known = self.ledger.get(wanted.path)
        part.replace(wanted.path)
        _forget(part)
        came = self.ledger.add(wanted.path, request.shown)
        if known is not None and known.sha256 != came.sha256:
            log.warning(
                "%s changed at its source since %s (sha256 %s, now %s): numbers may differ",
                wanted.path,
                known.date[:10],
                known.sha256[:12],
                came.sha256[:12],
            )

    def _try(self, request: ServerRequest, part: Path, size: int | None, advance: Advance) -> None:
        """Adds what is missing to `part`."""
        start, validator = _resumable(part, request.url)
        if start and start == size:  # a killed run has all of it
            return
        headers = dict(request.headers)
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": validator}
        with writing(part, "name another folder by --data-root"), _network_errors():
            timeout = self.patience.timeout  # for each wait, not for the whole file
            with self._session.get(
                request.url, headers=headers, stream=True, timeout=timeout
            ) as response:
                if response.status_code == 416:  # the part is longer than the file is now
                    raise DownloadError("the file became shorter at its source")
                _check_status(response, request)
                if response.status_code == 200:  # the whole file, as it changed or cannot be cut
                    start = 0
                    # Else a killed run would take the old content for the new version's.
                    part.unlink(missing_ok=True)
                _note(part, request.url, response)
                total = _total(response, start)
                if size is not None and total is not None and total != size:
                    raise RefusedError(f"has {total} bytes, not {size}: it changed at its source")
                check_space(part.parent, (size or total or start) - start)
                _write(response, part, start, size or total, advance)


class _BrokenError(DownloadError):
    """A try that another one may continue."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _UnreachableError(_BrokenError):
    """A try without an answer."""


def _write(
    response: requests.Response, part: Path, start: int, total: int | None, advance: Advance
) -> None:
    came, since, window = start, time.monotonic(), 0
    mode = "r+b" if start else "wb"  # "ab" cannot seek
    with part.open(mode) as file:
        file.seek(start)  # what came later than the note is not trusted
        for chunk in response.iter_content(CHUNK):
            if came == 0:
                _check_first(chunk, response)
            file.write(chunk)  # what came stays, whatever fails next
            came += len(chunk)
            window += len(chunk)
            advance(len(chunk))
            if total is not None and came > total:
                raise DownloadError(f"has more than {total} bytes")
            if time.monotonic() - since > WINDOW:
                if window < SLOWEST * WINDOW:
                    raise _BrokenError(f"came slower than {SLOWEST} bytes a second")
                since, window = time.monotonic(), 0
    if total is not None and came < total:
        raise _BrokenError(f"ended after {came} of {total} bytes")


@contextmanager
def _network_errors() -> Iterator[None]:
    """Turns what the network raises into one line."""
    try:
        yield
    except requests.RequestException as error:
        # The text of the error has the whole URL, which may hold a key.
        raise _UnreachableError(
            f"the connection to its server failed ({type(error).__name__})"
        ) from None


def _check_status(response: requests.Response, request: ServerRequest) -> None:
    status = response.status_code
    if status in (200, 206):
        return
    reason = f"the server answered with status {status}"
    if status >= 500 or status in _AGAIN:
        wait = retry_after(response.headers.get("Retry-After", ""))
        raise _BrokenError(reason, wait)
    page = hub_page(request.shown)
    if status in (401, 403) and page is not None:
        reason = (
            f"needs an account that accepted its terms (status {status}): "
            f"accept them at {page}, then `hf auth login`"
        )
    raise RefusedError(reason)


def _check_first(chunk: bytes, response: requests.Response) -> None:
    """Refuses a page: a server that lacks the file, or is over its daily limit, often sends one."""
    start = chunk[:1000].lstrip().lower()
    if not start.startswith(_PAGE):
        return
    reason = "the server sent a page in place of the file"
    text = chunk.lower()
    if any(word in text for word in _QUOTA):
        reason = (
            "its daily quota is used up, the server sent a page that says so: try again tomorrow, "
            "or get it in a browser and use --from FOLDER"
        )
    raise RefusedError(reason)


def _total(response: requests.Response, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else None


def _note(part: Path, url: str, response: requests.Response) -> None:
    """Writes down which version of the file the part is of."""
    headers = response.headers
    validator = headers.get("ETag") or headers.get("Last-Modified") or ""
    if validator.startswith("W/"):  # it does not promise the same bytes
        validator = ""
    note = {"url": url, "validator": validator}
    _note_of(part).write_text(json.dumps(note), encoding="utf-8")


def _resumable(part: Path, url: str) -> tuple[int, str]:
    """Bytes of the part that can be kept, and the validator of their version."""
    try:
        note = json.loads(_note_of(part).read_text(encoding="utf-8"))
        size = part.stat().st_size
        validator = note["validator"] if note["url"] == url else ""
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""
    if not validator:  # the rest may be of another version of the file
        return 0, ""
    return size, validator


def _note_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_of(part).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check(part: Path, wanted: WantedFile) -> None:
    """Raises a `DownloadError` unless a file is as it should be."""
    check_content(part, wanted.bytes, wanted.checksum)
    if wanted.check is not None:
        wanted.check(part)


def check_space(folder: Path, needed: int) -> None:
    """Raises a `UserError` unless the disk of a folder has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"expected {needed / 1e6:,.0f} MB free on the disk of {folder}, got "
            f"{free / 1e6:,.0f} MB: free the disk, or name another folder by --data-root"
        )
