"""Transformations of colours, pixel by pixel: hue, saturation, lightness, fewer colours.

In: an RGB image and parameters. Out: an RGB image of the same size. Never: randomness.
Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image, ImageOps

from vlmtune.errors import UserError

MAX_COLOURS = 256


def to_hsl(image: Image.Image) -> Float[ndarray, "h w 3"]:
    """Returns hue in [0, 360), saturation and lightness in [0, 255].

    Example:
        >>> to_hsl(Image.new("RGB", (1, 1), (0, 255, 0)))[0, 0].tolist()
        [120.0, 255.0, 127.5]
    """
    rgb = np.asarray(image.convert("RGB"), dtype=np.float32)
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    high, low = rgb.max(axis=-1), rgb.min(axis=-1)
    chroma, lightness = high - low, (high + low) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        hue = np.select(
            [chroma == 0, high == red, high == green],
            [0, (green - blue) / chroma % 6, (blue - red) / chroma + 2],
            (red - green) / chroma + 4,
        )
        saturation = np.where(chroma == 0, 0, chroma / (1 - np.abs(2 * lightness / 255 - 1)))
    return np.stack([60 * hue, saturation, lightness], axis=-1).astype(np.float32)


def from_hsl(hsl: Float[ndarray, "h w 3"]) -> Image.Image:
    """Returns the image of hue in degrees, saturation and lightness in [0, 255]."""
    hue, lightness = hsl[..., 0] / 30, hsl[..., 2] / 255
    reach = hsl[..., 1] / 255 * np.minimum(lightness, 1 - lightness)
    turned = (np.array([0, 8, 4], dtype=np.float32) + hue[..., None]) % 12
    step = np.clip(np.minimum(turned - 3, 9 - turned), -1, 1)
    return to_image(255 * (lightness[..., None] - reach[..., None] * step))


def to_image(values: Float[ndarray, "h w 3"]) -> Image.Image:
    """Returns the image of values in [0, 255], rounded and clipped."""
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8), "RGB")


def hue(image: Image.Image, scale: float | int, offset: float | int) -> Image.Image:
    """Scales and shifts the hue: (hue * scale + offset) mod 360, in degrees."""
    hsl = to_hsl(image)
    hsl[..., 0] = (hsl[..., 0] * scale + offset) % 360
    return from_hsl(hsl)


def saturation(image: Image.Image, scale: float | int, offset: float | int) -> Image.Image:
    """Scales and shifts the saturation: clip(saturation * scale + offset, 0, 255)."""
    hsl = to_hsl(image)
    hsl[..., 1] = np.clip(hsl[..., 1] * scale + offset, 0, 255)
    return from_hsl(hsl)


def lightness(image: Image.Image, offset: float | int) -> Image.Image:
    """Shifts the lightness: clip(lightness + offset, 0, 255)."""
    hsl = to_hsl(image)
    hsl[..., 2] = np.clip(hsl[..., 2] + offset, 0, 255)
    return from_hsl(hsl)


def hsl_as_rgb(image: Image.Image) -> Image.Image:
    """Reads hue, saturation and lightness, each scaled to [0, 255], as red, green and blue."""
    return to_image(to_hsl(image) * np.array([255 / 360, 1, 1], dtype=np.float32))


def identity(image: Image.Image) -> Image.Image:
    """Returns the image as it is."""
    return image


def grayscale(image: Image.Image) -> Image.Image:
    """Keeps the luma alone (ITU-R 601-2)."""
    return image.convert("L").convert("RGB")


def invert(image: Image.Image) -> Image.Image:
    """Inverts every value: 255 - value."""
    return ImageOps.invert(image)


def solarize(image: Image.Image, threshold: float | int) -> Image.Image:
    """Inverts every value of at least `threshold`."""
    return ImageOps.solarize(image, threshold)  # type: ignore[arg-type]


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keeps the highest `bits` bits of each value."""
    return ImageOps.posterize(image, bits)


def quantize(image: Image.Image, colours: int) -> Image.Image:
    """Replaces the colours by the centroids of so many clusters of them (median cut).

    Raises:
        UserError: `colours` is not between 1 and 256.
    """
    if not 1 <= colours <= MAX_COLOURS:
        raise UserError(f"expected 1 to {MAX_COLOURS} colours, got {colours}: correct it")
    return image.quantize(colours, Image.Quantize.MEDIANCUT).convert("RGB")
