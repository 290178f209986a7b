"""Images as their files store them, not turned by EXIF: what published benchmark scripts score.

Transparent pixels keep their hidden colours, and 16 bits are clipped, as in those scripts.

In: a reference to an image with `upright` False. Out: its pixels, and whether they are others.
"""

import warnings
from pathlib import Path

from PIL import Image

from vlmtune.data.images import formats, read
from vlmtune.data.rgb import is_plain
from vlmtune.errors import ImageFileError
from vlmtune.storage.files import regular
from vlmtune.types import ImageRef

ORIENTATION = 0x0112  # the EXIF tag
# Undoes the turn of each orientation.
UNDO = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def differs(path: Path) -> bool:
    """Tells whether the pixels of a file are others as stored than upright.

    A file that is not an image has none: reading it reports the error.
    """
    orientation, plain = _header(path)
    return orientation is not None or not plain


def _header(path: Path) -> tuple[int | None, bool]:
    """The orientation that turns an image upright, if it has one, and whether it is plain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(regular(path), formats=formats()) as image:
                orientation = image.getexif().get(ORIENTATION)
                plain = is_plain(image)
        except Exception:  # on damaged bytes decoders raise anything
            return None, True
    return (orientation if orientation in UNDO else None), plain


def read_stored(ref: ImageRef) -> Image.Image:
    """Opens an image as it is stored, or the part of it in the box."""
    orientation, _ = _header(ref.path)
    if orientation is None:
        return read(ref)
    # The reader turns images upright, so the turn is undone.
    upright = read(ImageRef(ref.path, upright=False))
    image = upright.transpose(UNDO[orientation])
    if ref.box is None:
        return image
    x, y, width, height = ref.box
    right = x + width
    bottom = y + height
    # A box may reach over the edge, and is filled with black there.
    outside = x >= image.width or y >= image.height or right <= 0 or bottom <= 0
    is_empty = min(width, height) < 1
    is_huge = width * height > image.width * image.height * 16
    if outside or is_empty or is_huge:
        raise ImageFileError(
            f"expected a box in {ref.path}, {image.width} x {image.height} as stored, got "
            f"{ref.box}: correct the annotations"
        )
    return image.crop((x, y, right, bottom))
