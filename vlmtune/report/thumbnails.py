"""Images small enough to be written into a page."""

import base64
from io import BytesIO

from PIL import Image

from vlmtune.types import ImageRef

SIDE = 192  # pixels of the longer side; twice what is shown, for dense displays


def thumbnail(reference: ImageRef) -> Image.Image | None:
    """Returns the image, cropped to its box and shrunk.

    What lies outside the image is black. None where the file is gone or is no image: a report is
    made after the run, perhaps elsewhere, and its numbers stand without the pictures.
    """
    try:
        with Image.open(reference.path) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    if reference.box is not None:
        x, y, width, height = reference.box
        if width < 1 or height < 1:
            return None
        image = image.crop((x, y, x + width, y + height))
    image.thumbnail((SIDE, SIDE))
    return image


def data_uri(reference: ImageRef) -> str | None:
    """Returns the thumbnail as a `data:` URI, or None where there is none."""
    image = thumbnail(reference)
    if image is None:
        return None
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
