"""Transformations of the frame: rotations, flips, crops.

In: an RGB image and parameters. Out: an RGB image. Never: randomness.
Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

from PIL import Image

from vlmtune.probing.parameters import Real


def rotate(image: Image.Image, degrees: Real) -> Image.Image:
    """Rotates counter-clockwise about the middle; the size stays, and corners are black."""
    return image.rotate(degrees, Image.Resampling.BILINEAR)


def vertical_flip(image: Image.Image) -> Image.Image:
    """Exchanges top and bottom."""
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def transpose(image: Image.Image, diagonal: str) -> Image.Image:
    """Flips along the "major" diagonal, from top left, or the "minor" one, from top right."""
    methods = {"major": Image.Transpose.TRANSPOSE, "minor": Image.Transpose.TRANSVERSE}
    return image.transpose(methods[diagonal])


def corner_crop(image: Image.Image) -> Image.Image:
    """Keeps the bottom-right quadrant."""
    left = image.width // 2
    top = image.height // 2
    return image.crop((left, top, image.width, image.height))
