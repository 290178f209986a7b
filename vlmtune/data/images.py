"""Opens image files that are not trusted.

In: a path or bytes. Out: an upright RGB image, or a digest. Never: more pixels than are allowed, or
an unpickled object.
"""

import contextlib
import functools
import hashlib
import importlib
import io
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vlmtune.data.rgb import PixelError, to_rgb
from vlmtune.data.schema import RecordError
from vlmtune.errors import ImageFileError
from vlmtune.storage.files import regular
from vlmtune.types import ImageRef

MAX_PIXELS = 64_000_000
"""Largest width x height of a file and of a box: 64 megapixels are 192 MB of RGB."""

# Formats of image corpora; plug-ins that run other programs (EPS) or fetch data are left out.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
CONVERT = "convert the file to PNG or JPEG"
HEIF = "HEIF"  # read if the package pillow-heif is installed

Box = tuple[int, int, int, int]


def open_image(source: bytes | Path, box: Box | None = None, plain: bool = False) -> Image.Image:
    """Decodes an image to RGB (`vlmtune.data.rgb`), turned upright by its EXIF, then cropped.

    A file that ends in `.npy` is a video frame from OpenCV, as EqBen stores it: an array of bytes,
    height x width x 3, blue first.

    Without such an image a path is an `ImageFileError`, bytes are a `RecordError`.

    Args:
        source: The encoded image, or its file.
        box: `(x, y, width, height)` in pixels of the upright image. It may reach outside, where the
            result is black.
        plain: Whether pixels become RGB as by Pillow's `convert`, which published scripts call: it
            drops transparency, and makes 16 bits white.

    Example:
        >>> buffer = io.BytesIO()
        >>> Image.new("RGB", (4, 2), "red").save(buffer, "PNG")
        >>> open_image(buffer.getvalue(), box=(3, 0, 2, 2)).getpixel((1, 0))
        (0, 0, 0)
    """
    try:
        if isinstance(source, Path) and not source.is_file():
            reason = "it is not a file" if source.exists() else "it is missing"
            raise _RefusedError(reason)
        if isinstance(source, Path) and source.suffix == ".npy":
            image = _frame(source)
        else:
            image = _decode(source, plain)
        return _crop(image, box)
    except Exception as error:  # on damaged bytes decoders and numpy raise anything
        refused = _refused(error, source)
        if isinstance(source, Path):
            raise ImageFileError(
                f"expected an image in {source}, got none ({refused}): {refused.advice}"
            ) from error
        raise RecordError(f"image refused: {refused}") from error


def read(ref: ImageRef) -> Image.Image:
    """Opens the image of a benchmark, or the part of it in the box; plain if not `upright`."""
    return open_image(ref.path, ref.box, plain=not ref.upright)


def digest(ref: ImageRef) -> str:
    """Returns the sha256 of the file's bytes and the box: equal digests mean equal pixels."""
    try:
        with regular(ref.path).open("rb") as file:
            state = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise ImageFileError(
            f"expected an image in {ref.path}, got {error.strerror}: name a file that exists"
        ) from error
    state.update(repr(ref.box).encode())
    return state.hexdigest()


def content_digest(content: bytes) -> str:
    """Returns the `digest` of a whole file with this content."""
    no_box = repr(None).encode()
    return hashlib.sha256(content + no_box).hexdigest()


class _RefusedError(ValueError):
    """Why an image is not opened, and what to do."""

    def __init__(self, reason: str, advice: str = "replace the file") -> None:
        super().__init__(reason)
        self.advice = advice


@functools.cache
def formats() -> tuple[str, ...]:
    """Returns the formats that are read on this machine, by Pillow's names."""
    if find_spec("pillow_heif") is None:
        return FORMATS
    importlib.import_module("pillow_heif").register_heif_opener()
    return (*FORMATS, HEIF)


def _decode(source: bytes | Path, plain: bool) -> Image.Image:
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    with warnings.catch_warnings():
        # Decoders warn of harmless details, such as broken EXIF.
        warnings.simplefilter("ignore")
        with Image.open(file, formats=formats()) as image:
            # The header has the size, so a bomb is an error before it is unpacked.
            _check_size(image.size, "pixels")
            image.load()  # damage shows here, not when pixels are used
            # Unreadable EXIF has no orientation, and the pixels are sound.
            with contextlib.suppress(Exception):
                ImageOps.exif_transpose(image, in_place=True)
            return image.convert("RGB") if plain else to_rgb(image)


def _refused(error: Exception, source: bytes | Path) -> _RefusedError:
    if isinstance(error, _RefusedError):
        return error
    if isinstance(error, PixelError):
        return _RefusedError(str(error), "save it with 8 or 16 bits")
    if isinstance(error, UnidentifiedImageError):
        return _unidentified(source)
    return _RefusedError(" ".join(str(error).split()) or type(error).__name__)


def _unidentified(source: bytes | Path) -> _RefusedError:
    """Why no reader knows a file: its format is another one, or it is not an image."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            source = file.read(16)
    start = source[:16]
    if start[4:8] == b"ftyp":  # as containers of ISO begin; AVIF among them is read
        return _RefusedError("format HEIF is not read without the package pillow-heif", CONVERT)
    return _RefusedError("cannot identify image file")


def _frame(path: Path) -> Image.Image:
    # Memory-mapped, so that shape and type are known before any data is read.
    array = np.lib.format.open_memmap(path, mode="r")
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise _RefusedError(
            f"an array of {array.dtype} {array.shape}, not bytes of height x width x 3"
        )
    height, width, _ = array.shape
    _check_size((width, height), "pixels")
    rgb = np.ascontiguousarray(array[:, :, ::-1])  # OpenCV stores blue first
    return Image.fromarray(rgb)


def _check_size(size: tuple[int, int], what: str) -> None:
    width, height = size
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise _RefusedError(f"{width} x {height} {what}, allowed are 1 to {MAX_PIXELS} pixels")


def _crop(image: Image.Image, box: Box | None) -> Image.Image:
    if box is None:
        return image
    x, y, width, height = box
    _check_size((width, height), "pixels in the box")
    right = x + width
    bottom = y + height
    if x >= image.width or y >= image.height or right <= 0 or bottom <= 0:
        raise _RefusedError(
            f"box {box} does not touch the {image.width} x {image.height} image",
            "change the box, or use convention: reference if the boxes are of stored pixels",
        )
    return image.crop((x, y, right, bottom))
