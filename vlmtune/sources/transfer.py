"""One file of a server: resumed where an earlier run stopped, checked, then renamed.

In: addresses of the same file, and what is known of it. Out: the file, noted in the ledger.
Never: a page in place of a file, half a file, a body that drips without end, or a secret in a
message.
"""

import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import requests
import urllib3

from vlmtune.errors import UserError, counted
from vlmtune.sources.addresses import HAND, ServerRequest, hub_page, request_of
from vlmtune.sources.ledger import ELSEWHERE, Ledger
from vlmtune.storage.files import writing
from vlmtune.storage.folder import digest
from vlmtune.storage.remote.address import without_credentials
from vlmtune.storage.remote.download import (
    TEMPORARY,
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
_BEFORE = re.compile(rb"(\xef\xbb\xbf|\s|<!--.*?-->|<\?xml.*?\?>)*", re.DOTALL)
_PAGE = (b"<!doctype html", b"<html", b"<head", b"<error>")  # the last one is of S3
_MARKUP = {".html", ".svg", ".xml"}
_QUOTA = (b"quota", b"too many users")
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
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
        failed = wrong = 0
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
                reason = str(error)
                least = error.retry_after
                reached = error.reached
            except DownloadError as error:
                _forget(part)
                reason = str(error)
                reached = True
                wrong += 1
            failed = 0 if _size(part) - before > PROGRESS else failed + 1
            # What is wrong twice rarely becomes right, however much of it comes.
            if failed >= tries or wrong > 1:
                if not reached and not _size(part):
                    self._unreachable.add(host)
                raise DownloadError(f"{reason} ({counted(failed, 'attempt')})")
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
        came = self.ledger.add(wanted.path, without_credentials(request.shown))
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
        with writing(part, ELSEWHERE), _network_errors():
            timeout = self.patience.timeout  # for each wait, not for the whole file
            with self._session.get(
                request.url, headers=headers, stream=True, timeout=timeout
            ) as response:
                problem = _problem(response, request, start, validator, size)
                if problem is not None:
                    raise problem
                if response.status_code == 200:  # the whole file, as it changed or cannot be cut
                    start = 0
                    validator = ""
                    # Else a killed run would take the old content for the new version's.
                    part.unlink(missing_ok=True)
                _note(part, request.url, _validator(response) or validator)
                total = _total(response, start)
                check_space(part.parent, (size or total or start) - start)
                _write(response, part, start, size or total, advance)


class _BrokenError(DownloadError):
    """A try that another one may continue; `reached` says whether the server answered."""

    def __init__(self, reason: str, retry_after: float = 0.0, reached: bool = True) -> None:
        super().__init__(reason)
        self.retry_after = retry_after
        self.reached = reached


def _write(
    response: requests.Response, part: Path, start: int, total: int | None, advance: Advance
) -> None:
    came = start
    since = time.monotonic()
    window = 0
    mode = "r+b" if start else "wb"  # "ab" cannot seek
    with part.open(mode) as file:
        file.seek(start)  # what came later than the note is not trusted
        # `iter_content` waits for a full chunk: for hours, if a byte comes a second.
        while chunk := response.raw.read1(CHUNK, decode_content=True):
            if came == 0:
                _check_start(chunk, part)
            file.write(chunk)  # what came stays, whatever fails next
            came += len(chunk)
            window += len(chunk)
            advance(len(chunk))
            if total is not None and came > total:
                break
            if time.monotonic() - since > WINDOW:
                if window < SLOWEST * WINDOW:
                    raise _BrokenError(f"came slower than {SLOWEST} bytes a second")
                since = time.monotonic()
                window = 0
    if total is not None and came != total:
        kind = _BrokenError if came < total else DownloadError
        raise kind(f"gave {came} bytes of {total}")


@contextmanager
def _network_errors() -> Iterator[None]:
    """Turns what the network raises into one line."""
    try:
        yield
    except UserError:
        raise
    # The URL of a redirect that cannot be parsed is a plain ValueError.
    except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
        # The text of the error has the whole URL, which may hold a key.
        reason = f"the connection to its server failed ({type(error).__name__})"
        raise _BrokenError(reason, reached=False) from None


def _problem(
    response: requests.Response,
    request: ServerRequest,
    start: int,
    validator: str,
    size: int | None,
) -> DownloadError | None:
    """What is wrong with an answer to a request for a file, or for what follows `start`."""
    status = response.status_code
    if status == 206:
        # A server may ignore what was asked for, or the version of which it was asked. It need not
        # state the version again.
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        goes_on = match is not None and int(match[1]) == start > 0
        if not goes_on or _validator(response) not in ("", validator):
            return DownloadError("the server sent another part of the file than asked for")
    if status in (200, 206):
        total = _total(response, start)
        if size is not None and total not in (None, size):
            return RefusedError(f"has {total} bytes, not {size}: it changed at its source")
        return None
    if status == 416:  # the part is longer than the file is now
        return DownloadError("the file became shorter at its source")
    reason = f"the server answered with status {status}"
    if status >= 500 or status in TEMPORARY:
        wait = retry_after(response.headers.get("Retry-After", ""))
        return _BrokenError(reason, wait)
    page = hub_page(request.shown)
    if status in (401, 403) and page is not None:
        reason = (
            f"needs an account that accepted its terms (status {status}): "
            f"accept them at {page}, then `hf auth login`"
        )
    return RefusedError(reason)


def check_no_page(path: Path) -> None:
    """Raises a `DownloadError` if a file is a page: a server that lacks a file often sends one."""
    with path.open("rb") as file:
        _check_start(file.read(CHUNK), path)


def _check_start(start: bytes, path: Path) -> None:
    text = start.lower()
    content = _BEFORE.sub(b"", text, count=1)
    wanted = Path(path.name.removesuffix(".part"))
    if wanted.suffix in _MARKUP or not content.startswith(_PAGE):
        return
    reason = "is a page in place of the file"
    if any(word in text for word in _QUOTA):
        reason = (
            "is a page that says that the daily quota is used up: try again tomorrow, or get the "
            "file in a browser and use --from FOLDER"
        )
    raise DownloadError(reason)


def _total(response: requests.Response, start: int) -> int | None:
    """Bytes of the whole file, of which the answer may be what follows `start`."""
    length = response.headers.get("Content-Length", "")
    if not length.isdecimal():
        return None
    return int(length) + (start if response.status_code == 206 else 0)


def _note(part: Path, url: str, validator: str) -> None:
    """Writes down which version of the file the part is of."""
    note = {"url": digest(url), "validator": validator}  # an address may hold a password
    _note_of(part).write_text(json.dumps(note), encoding="utf-8")


def _validator(response: requests.Response) -> str:
    headers = response.headers
    validator = headers.get("ETag") or headers.get("Last-Modified") or ""
    # A weak one does not promise the same bytes.
    return "" if validator.startswith("W/") else validator


def _resumable(part: Path, url: str) -> tuple[int, str]:
    """Bytes of the part that can be kept, and the validator of their version."""
    try:
        note = json.loads(_note_of(part).read_text(encoding="utf-8"))
        size = part.stat().st_size
        validator = note["validator"] if note["url"] == digest(url) else ""
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
    check_no_page(part)
    if wanted.check is not None:
        wanted.check(part)


def check_space(folder: Path, needed: int) -> None:
    """Raises a `UserError` unless the disk of a folder has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"expected {needed / 1e6:,.0f} MB free on the disk of {folder}, got "
            f"{free / 1e6:,.0f} MB: free the disk, or {ELSEWHERE}"
        )
