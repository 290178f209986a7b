"""Fetches, unpacks and converts what was ordered, and says what did not come.

In: orders. Out: files where the plug-ins look for them. Never: two runs in one data folder, a file
of a person overwritten, or terms that nobody accepted.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from PIL import Image

from vlmtune.benchmarks.base import Benchmark
from vlmtune.config import data_root
from vlmtune.errors import UserError, counted
from vlmtune.sources.addresses import HAND, file_name
from vlmtune.sources.ledger import BY_PERSON, STATE, Ledger
from vlmtune.sources.licences import accept
from vlmtune.sources.order import Order, default_reader, needed_images, orders
from vlmtune.sources.source import Conversion, SourceFile, SourceImages, sources
from vlmtune.sources.state import (
    archive_name,
    conversion_files,
    image_files,
    is_here,
    missing_bytes,
)
from vlmtune.sources.transfer import Downloader, WantedFile, check_no_page, check_space
from vlmtune.sources.unpack import ArchiveError, unpack
from vlmtune.storage.files import write_atomically
from vlmtune.storage.folder import locked
from vlmtune.storage.progress import progress
from vlmtune.storage.remote.download import DownloadError, Patience, check_content

THREADS = 8
"""Images fetched at a time."""
HOPELESS = 24
"""Images that fail one after the other before the rest is not tried."""
log = logging.getLogger("vlmtune")


def download(
    wanted: Sequence[Order],
    *,
    accepted: Iterable[str] = (),
    given: Path | None = None,
    readers: Mapping[str, Benchmark] | None = None,
    patience: Patience | None = None,
) -> None:
    """Brings what is wanted into the data folder, which `VLMTUNE_DATA` names.

    What is there already is not fetched again. What fails does not stop the rest.

    Args:
        wanted: What is wanted of each source.
        accepted: Sources whose terms were accepted.
        given: A folder with files that a person fetched.
        readers: Benchmarks whose images are wanted, by name, instead of those of the YAMLs.
        patience: Tries of each file, and the waits between them.

    Raises:
        UserError: Terms were not accepted, the disk is too small, or files did not come.
    """
    root = data_root()
    # Before the lock makes a folder for a download that fails at once.
    accept(wanted, accepted, root, write=False)
    with locked(root / STATE / "download"):
        accept(wanted, accepted, root)
        _Download(root, given, readers or {}, patience).run(wanted)


def download_missing(benchmarks: Sequence[Benchmark]) -> None:
    """Downloads the files of those benchmarks whose files cannot be read as they are.

    A failure is one line of the log; reading the benchmark then fails as before.
    """
    for benchmark in benchmarks:
        # Sources list a benchmark by its module; a user may have given the instance another name.
        _, _, name = type(benchmark).__module__.rpartition(".")
        try:
            benchmark.load()
            continue
        except UserError:
            is_known = any(name in source.names for source in sources().values())
        if is_known:
            try:
                download(orders([name]), readers={name: benchmark})
            except UserError as error:
                log.warning("%s", error)


class _Download:
    """One run: what came, and what failed."""

    def __init__(
        self,
        root: Path,
        given: Path | None,
        readers: Mapping[str, Benchmark],
        patience: Patience | None,
    ) -> None:
        self.root = root
        self.given = given
        self.readers = readers
        self.ledger = Ledger(root)
        self.downloader = Downloader(self.ledger, patience)
        self.failures: list[str] = []

    def run(self, wanted: Sequence[Order]) -> None:
        """Brings all orders; the first failures are named in the error."""
        needed = sum(missing_bytes(order, self.ledger) for order in wanted)
        check_space(self.root, needed)
        for order in wanted:
            before = len(self.failures)
            for file in order.files:
                self._tried(partial(self._bring, order, file))
            if len(self.failures) > before:
                continue  # what is made of files, and the list of images, needs all of them
            for conversion in order.conversions:
                self._tried(partial(self._make, order, conversion))
            for images in order.images:
                self._tried(partial(self._bring_images, order, images))
        if self.failures:
            names = ", ".join(order.name for order in wanted)
            others = len(self.failures) - 1
            more = f", and {others} more, see above" if others else ""
            raise UserError(
                f"expected all files of {names}, got an incomplete download ({self.failures[0]}"
                f"{more}): run it again, what came is kept"
            )

    def _tried(self, do: Callable[[], None]) -> None:
        try:
            do()
        except (DownloadError, UserError) as error:
            reason = " ".join(str(error).split())
            if self.failures:  # the first one is in the error at the end
                log.warning("failed: %s", reason)
            self.failures.append(reason)

    # -- files ---------------------------------------------------------------------------------

    def _bring(self, order: Order, file: SourceFile) -> None:
        if is_here(file, self.ledger):
            return
        if file.unpack is None:
            self._bring_file(order, file)
        else:
            self._bring_archive(order, file, file.unpack)

    def _bring_file(self, order: Order, file: SourceFile) -> None:
        path = self.root / file.path
        arrival = self.ledger.get(path)
        if path.exists() and (arrival is None or arrival.address == BY_PERSON):
            self._adopt(path, file)
            return
        by_hand = self._file_by_hand(file)
        if by_hand is None:
            self._fetch(order, WantedFile(path, file.urls, file.bytes, file.checksum))
            return
        with write_atomically(path) as temporary:
            shutil.copyfile(by_hand, temporary)
        self.ledger.add(path, f"{HAND}{by_hand.name}")

    def _adopt(self, path: Path, file: SourceFile) -> None:
        """Takes a file that a person put there, if it is the right one."""
        with _failure_of(f"{path}: what is there already", "; move it away, and run again"):
            check_content(path, file.bytes, file.checksum)
            check_no_page(path)
        self.ledger.add(path, BY_PERSON)

    def _bring_archive(self, order: Order, file: SourceFile, kind: str) -> None:
        name = archive_name(file)
        archive = self._file_by_hand(file)
        if archive is None:
            # Beside the data, so that a killed run finds the whole archive again.
            archive = self.root / STATE / "archives" / name
            if not self.ledger.has(archive):
                self._fetch(order, WantedFile(archive, file.urls, file.bytes, file.checksum))
        log.info("%s: unpacking %s", order.name, file_name(file.urls[0]) or name)
        is_ours = archive.parent == self.root / STATE / "archives"
        folder = self.root / file.path
        try:
            written = unpack(archive, kind, folder, self.ledger, file.members, file.strip)
        except ArchiveError:
            if is_ours:  # the next run gets it again
                archive.unlink()
            raise
        self.ledger.note_members(name, written)
        if is_ours:
            archive.unlink()

    def _file_by_hand(self, file: SourceFile) -> Path | None:
        """The file in the folder of a person, checked; None if it is not there."""
        if self.given is None:
            return None
        names = list(map(file_name, file.urls))
        names.append(Path(file.path).name)
        for name in filter(None, names):
            path = self.given / name
            if not path.is_file():
                continue
            with _failure_of(str(path), "; get it again"):
                check_content(path, file.bytes, file.checksum)
                check_no_page(path)
            return path
        return None

    def _fetch(self, order: Order, wanted: WantedFile) -> None:
        shown = file_name(wanted.addresses[0]) or wanted.path.name
        # A bar of single bytes would have numbers too long to read.
        size = None if wanted.bytes is None else wanted.bytes / 1e6
        with (
            progress(f"{order.name}: {shown} (MB)", size) as advance,
            _failure_of(f"{shown} of {order.name}:"),
        ):
            self.downloader.fetch(wanted, lambda count: advance(count / 1e6))
        log.info("%s: %s, %.1f MB", order.name, shown, wanted.path.stat().st_size / 1e6)

    # -- conversions ---------------------------------------------------------------------------

    def _make(self, order: Order, conversion: Conversion) -> None:
        key = conversion_files(order, conversion, self.ledger)
        if self.ledger.has_members(key):
            return
        log.info("%s: making %s", order.name, conversion.makes)
        convert = resolve_name(conversion.call)
        output = self.root / conversion.makes
        of_person = {path for path in _files_of(output) if not self.ledger.wrote(path)}
        if output in of_person:  # a file that a person made takes its place
            self._note_sizes(key, [output])
            return
        convert(self.root, **conversion.arguments)
        # Noted file by file, so that a person's clean-up is seen and made good.
        written = [path for path in _files_of(output) if path not in of_person]
        self._note_sizes(key, written)

    def _note_sizes(self, key: str, files: Iterable[Path]) -> None:
        """Notes files that are here now, as the members of an archive."""
        sizes = {path: path.stat().st_size for path in files}
        self.ledger.note_members(key, sizes)

    # -- images --------------------------------------------------------------------------------

    def _bring_images(self, order: Order, images: SourceImages) -> None:
        reader = self.readers.get(images.of)
        benchmark = reader or default_reader(images.of)
        needed = needed_images(images, benchmark, self.root)
        missing = [path for path in needed if not _has_content(path)]
        if self.given is not None:
            folders = (self.given, self.given / Path(images.folder).name)
            missing = [path for path in missing if not self._take_image(images, path, folders)]
        failed = self._fetch_images(order, images, missing)
        if failed:
            present = sum(map(_has_content, needed))
            lacking = len(needed) - present
            raise DownloadError(
                f"{lacking} of {counted(len(needed), 'image')} of {images.of}, first {failed[0]}"
            )
        # A user's own options may need other images, so only those of the YAML are noted as whole.
        if reader is None:
            self._note_sizes(image_files(images), needed)

    def _take_image(self, images: SourceImages, path: Path, folders: Sequence[Path]) -> bool:
        """Copies an image out of the folders of a person; False if it is not there."""
        name = path.relative_to(self.root / images.folder)
        for folder in folders:
            image = folder / name
            if _has_content(image):
                _check_image(image)
                with write_atomically(path) as temporary:
                    shutil.copyfile(image, temporary)
                return True
        return False

    def _fetch_images(
        self, order: Order, images: SourceImages, missing: Sequence[Path]
    ) -> list[str]:
        """Fetches images, several at a time; returns what failed, with the reason."""
        if not missing:
            return []
        folder = self.root / images.folder
        wanted = []
        for path in missing:
            addresses = images.addresses(path.relative_to(folder))
            wanted.append(WantedFile(path, addresses, check=_check_image))
        failed: list[str] = []
        hopeless = 0
        label = f"{order.name}: images of {images.of}"
        with _pool() as pool, progress(label, len(wanted)) as advance:
            files = {pool.submit(self.downloader.fetch, file): file for file in wanted}
            for future in as_completed(files):
                try:
                    future.result()
                    advance(1)
                    hopeless = 0
                    continue
                except DownloadError as error:
                    failed.append(f"{files[future].path.name}: {error}")
                # A server that refuses many images in a row will refuse the rest, too.
                hopeless += 1
                if hopeless == HOPELESS:
                    log.warning("%s: %d images in a row failed, the rest is left", label, hopeless)
                    break
        came = sum(map(_has_content, missing))
        log.info("%s: %d of %d came", label, came, len(missing))
        return failed


@contextmanager
def _failure_of(what: str, then: str = "") -> Iterator[None]:
    """Says of a failure in the block what it is of, and what to do."""
    try:
        yield
    except DownloadError as error:
        raise DownloadError(f"{what} {error}{then}") from None


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that begin nothing more once the block ends."""
    # Else 100,000 images would go on after a person or an error stopped them.
    pool = ThreadPoolExecutor(THREADS)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _files_of(path: Path) -> list[Path]:
    """A file, or all files of a folder; none if nothing is there."""
    files = [path, *path.rglob("*")]
    return [file for file in files if file.is_file()]


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _check_image(path: Path) -> None:
    """Raises a `DownloadError` unless a file is a whole image, as far as its headers say."""
    try:
        with Image.open(path) as image:
            image.verify()  # without decoding, which takes minutes for many
    except Exception as error:  # decoders of PIL raise many kinds
        reason = " ".join(str(error).split())
        raise DownloadError(f"cannot be read as an image ({reason})") from None
