"""Transformations that mix another picture into an image, before it or behind it.

In: an RGB image, the name of a distraction and where it goes. Out: an RGB image of the same size.
Never: randomness. Source: Rashtchian et al. 2023, appendix C.3. The paper's eleven distractions are
not published; those of `distractions` are painted.
"""

from PIL import Image

from vlmtune.probing.distractions import draw_distraction
from vlmtune.probing.filters import scaled_size
from vlmtune.probing.parameters import Real


def image_overlay(
    image: Image.Image, distraction: str, size: Real, opacity: int, x: Real, y: Real
) -> Image.Image:
    """Puts a distraction on the image.

    Args:
        image: The image.
        distraction: One of `vlmtune.probing.distractions.DISTRACTIONS`.
        size: Width and height of the distraction, as fractions of the image's.
        opacity: Of the distraction, 255 being opaque.
        x: Where it goes, from 0 (left) to 1 (right).
        y: Where it goes, from 0 (top) to 1 (bottom).
    """
    picture = _picture(distraction, image)
    return _blended(image, picture, size, opacity, x, y)


def fuse(
    image: Image.Image, distraction: str, size: Real, opacity: int, x: Real, y: Real
) -> Image.Image:
    """Puts the image on a distraction of the same size; `size` and `opacity` are the image's."""
    picture = _picture(distraction, image)
    return _blended(picture, image, size, opacity, x, y)


def _picture(distraction: str, image: Image.Image) -> Image.Image:
    return draw_distraction(distraction).resize(image.size, Image.Resampling.BILINEAR)


def _blended(
    back: Image.Image, front: Image.Image, size: Real, opacity: int, x: Real, y: Real
) -> Image.Image:
    small_size = scaled_size(back, size, size)
    small = front.resize(small_size, Image.Resampling.BILINEAR)
    # At 0 the front touches one edge of the back, at 1 the other one.
    left = round(x * (back.width - small.width))
    top = round(y * (back.height - small.height))
    mask = Image.new("L", small.size, opacity)
    blended = back.copy()
    blended.paste(small, (left, top), mask)
    return blended
