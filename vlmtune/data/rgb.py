"""How pixels of any kind become RGB of 8 bits.

In: a decoded image. Out: RGB. Never: clipped pixels, or hidden colours of transparent ones.
"""

import numpy as np
from PIL import Image

DECODING = 2  # grows when an image becomes other pixels; features that are stored depend on it
_WIDE = 257  # 65535 / 255: white of 16 bits becomes white of 8
_RANGELESS = ("I", "F")


class PixelError(ValueError):
    """Pixels that do not say which of their numbers is white."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Returns an image as RGB.

    Grey of 16 bits is divided by 257 and rounded. Transparent pixels are pasted on white.

    Raises:
        PixelError: The pixels are integers of 32 bits or floats, whose range is unknown.

    Example:
        >>> to_rgb(Image.new("I;16", (1, 1), 257 * 30)).getpixel((0, 0))
        (30, 30, 30)
        >>> to_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0))
        (255, 255, 255)
    """
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if _is_wide(image):
        levels = np.asarray(image).astype(np.float32) / _WIDE
        grey = np.rint(levels).astype(np.uint8)  # a cast alone rounds down
        return Image.fromarray(grey).convert("RGB")
    if image.mode in _RANGELESS:
        raise PixelError(f"pixels of mode {image.mode!r}, whose range is unknown")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")  # as pages and viewers show it
        return Image.alpha_composite(white, picture).convert("RGB")
    return image.convert("RGB")


def is_plain(image: Image.Image) -> bool:
    """Tells whether Pillow's own `convert("RGB")` gives the same pixels, from the header alone."""
    depth = image.mode in _RANGELESS or _is_wide(image)
    return not (depth or image.has_transparency_data)


def _is_wide(image: Image.Image) -> bool:
    """Whether pixels are grey of 16 bits; Pillow reads those of PGM as integers of 32."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
