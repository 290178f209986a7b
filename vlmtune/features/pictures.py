"""Image files and pictures: named by a digest of their content, and read into pixels.

In: files or pictures. Out: digests, and batches of preprocessed pixels.
Never: the same pixels under two digests while a file stays as it is.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vlmtune.data.images import digest, read
from vlmtune.data.rgb import PixelError, to_rgb
from vlmtune.errors import UserError
from vlmtune.features.stored_pixels import differs, read_stored
from vlmtune.storage.progress import progress
from vlmtune.types import ImageRef

Picture = ImageRef | Image.Image
WORKERS = min(8, os.cpu_count() or 1)  # threads that read and decode pictures
READ_AHEAD = 1024  # pictures that wait for these threads
State = tuple[int, int] | None
"""Size and time of a file; None if it cannot be asked for them."""
T = TypeVar("T")


class Failures:
    """Says whether inputs that cannot be read or encoded raise or are skipped.

    Example:
        >>> failures = Failures()
        >>> def fail():
        ...     raise UserError("no such file")
        >>> with failures.skipped():
        ...     failures.attempt(fail)
    """

    def __init__(self) -> None:
        self.skip = False

    @contextlib.contextmanager
    def skipped(self) -> Iterator[None]:
        """Skips them inside the block."""
        self.skip = True
        try:
            yield
        finally:
            self.skip = False

    def attempt(self, function: Callable[[], T]) -> T | None:
        """Returns the result of `function`, or None if it fails while failures are skipped."""
        try:
            return function()
        except UserError:
            if not self.skip:
                raise
            return None


class PictureReader:
    """Computes digests of pictures and reads their pixels."""

    def __init__(
        self, preprocess: Callable[[Any], Tensor], batch_size: int, failures: Failures
    ) -> None:
        self.preprocess = preprocess
        self.batch_size = batch_size
        self.failures = failures
        # Of each file its state when its digest was computed, and the digest.
        self._known: dict[ImageRef, tuple[State, str]] = {}

    def digests(self, pictures: Sequence[Picture]) -> list[str]:
        """Returns digests of the content; a skipped picture has "".

        A file is read again only if its size or time changes.
        """

        def attempt(picture: Picture) -> str:
            name = self.failures.attempt(partial(self._digest, picture))
            return name or ""

        if len(pictures) < self.batch_size:  # starting threads would take longer
            return [attempt(picture) for picture in pictures]
        names: list[str] = []
        bar = progress("reading images", len(pictures))
        with ThreadPoolExecutor(WORKERS) as pool, bar as advance:
            # `map` takes memory for each picture at once, so it gets a part at a time.
            for start in range(0, len(pictures), READ_AHEAD):
                part = pictures[start : start + READ_AHEAD]
                names += pool.map(attempt, part)
                advance(len(part))
        return names

    def remember(self, pictures: Sequence[Picture], names: Sequence[str]) -> None:
        """Keeps digests that another rank computed."""
        for picture, name in zip(pictures, names, strict=True):
            if not name or not isinstance(picture, ImageRef):
                continue
            state = _file_state(picture)
            if state is not None:  # this host may see the file later than the other rank's
                self._known[picture] = state, name

    def _digest(self, picture: Picture) -> str:
        if not isinstance(picture, ImageRef):
            picture = _rgb(picture)
            # The size counts too: pictures of 2 x 3 and of 3 x 2 may have the same bytes.
            size = repr(picture.size).encode()
            return hashlib.sha256(size + picture.tobytes()).hexdigest()
        state = _file_state(picture)
        known_state, name = self._known.get(picture, (None, ""))
        if state is None or state != known_state:
            name = digest(picture)  # of a file that cannot be read it raises
            if not picture.upright and differs(picture.path):
                name = hashlib.sha256(f"{name} as stored".encode()).hexdigest()
            self._known[picture] = state, name
        return name

    def _read(self, picture: Picture) -> Image.Image:
        """Reads a picture; a `UserError` if its digest was computed of another file."""
        image = read_picture(picture)
        if not isinstance(picture, ImageRef) or picture not in self._known:
            return image
        state, _ = self._known[picture]
        # A store would keep the features of the new picture under the name of the old one.
        if state != _file_state(picture):
            raise UserError(
                f"expected {picture.path} to stay as it is, it changed while images were read: "
                "wait until they are written, then run again"
            )
        return image

    def batches(
        self, pictures: Mapping[str, Picture], names: Sequence[str]
    ) -> Iterator[tuple[list[str], Float[Tensor, "n 3 height width"]]]:
        """Yields names and pixels; threads read the next batch while one is encoded."""

        def load(name: str) -> Tensor | None:
            image = self.failures.attempt(partial(self._read, pictures[name]))
            return None if image is None else self.preprocess(image)

        with ThreadPoolExecutor(WORKERS) as pool:
            waiting: dict[str, Future[Tensor | None]] = {}
            for start in range(0, len(names), self.batch_size):
                # The batch before is handed out while this one is read.
                ready = waiting
                waiting = {}
                for name in names[start : start + self.batch_size]:
                    waiting[name] = pool.submit(load, name)
                yield from _loaded(ready)
            yield from _loaded(waiting)


def _loaded(
    futures: Mapping[str, "Future[Tensor | None]"],
) -> Iterator[tuple[list[str], Float[Tensor, "n 3 height width"]]]:
    """Yields one batch, without the pictures that were skipped; nothing if all were."""
    names = []
    pixels = []
    for name, future in futures.items():
        loaded = future.result()
        if loaded is not None:
            names.append(name)
            pixels.append(loaded)
    if names:
        yield names, torch.stack(pixels)


def as_pictures(images: Sequence[str | Path | Picture]) -> list[Picture]:
    """Returns images as pictures; a path becomes a reference to its file."""
    pictures: list[Picture] = []
    for image in images:
        if isinstance(image, str | Path):
            image = ImageRef(Path(image))
        pictures.append(image)
    return pictures


def read_picture(picture: Picture) -> Image.Image:
    """Returns the RGB image that is scored."""
    if not isinstance(picture, ImageRef):
        return _rgb(picture)
    return read(picture) if picture.upright else read_stored(picture)


def _rgb(picture: Image.Image) -> Image.Image:
    try:
        return to_rgb(picture)
    except PixelError as error:
        raise UserError(f"expected a picture of 8 or 16 bits, got {error}: convert it") from error


def _file_state(ref: ImageRef) -> State:
    """Size and time of a file, which is taken for unchanged while it keeps both."""
    try:
        status = ref.path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
