"""Transformations of colours, pixel by pixel: hue, saturation, lightness, fewer colours.

In: an RGB image and parameters. Out: an RGB image of the same size. Never: randomness.
Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image, ImageOps

from vlmtune.probing.parameters import Real


def to_hsl(image: Image.Image) -> Float[ndarray, "h w 3"]:
    """Returns hue in [0, 360), saturation and lightness in [0, 255].

    Example:
        >>> to_hsl(Image.new("RGB", (1, 1), (0, 255, 0)))[0, 0].tolist()
        [120.0, 255.0, 127.5]
    """
    # Planes of one channel each: operations along an axis of three would take most of the time.
    pixels = np.asarray(image.convert("RGB"))
    planes = np.moveaxis(pixels, -1, 0)
    red, green, blue = planes.astype(np.float32, order="C")
    high = np.maximum(np.maximum(red, green), blue)
    low = np.minimum(np.minimum(red, green), blue)
    chroma = high - low
    lightness = (high + low) / 2
    # Grey has chroma 0: a divisor of 1 gives it hue 0 and saturation 0.
    grey = chroma == 0
    one = np.float32(1)
    divisor = np.where(grey, one, chroma)
    # The hue, in sixths of the circle, starts at 0, 2 or 4 by the channel that leads.
    red_leads = (green - blue) / divisor
    red_leads = np.where(red_leads < 0, red_leads + 6, red_leads)
    green_leads = (blue - red) / divisor + 2
    blue_leads = (red - green) / divisor + 4
    hue = np.where(high == green, green_leads, blue_leads)
    hue = np.where(high == red, red_leads, hue)
    # The largest chroma that a lightness allows: 1 in the middle, 0 for black and white.
    distance = np.abs(2 * lightness / 255 - 1)
    largest_chroma = 1 - distance
    saturation = chroma / np.where(grey, one, largest_chroma)
    return np.stack([60 * hue, saturation, lightness], axis=-1)


def from_hsl(hsl: Float[ndarray, "h w 3"]) -> Image.Image:
    """Returns the image of hue in degrees, saturation and lightness in [0, 255]."""
    hue = hsl[..., 0] / 30
    saturation = hsl[..., 1] / 255
    lightness = hsl[..., 2] / 255
    reach = saturation * np.minimum(lightness, 1 - lightness)
    channels = []
    for start in (0, 8, 4):  # twelfths of the circle from red, green and blue
        turned = hue + np.float32(start)
        turned = np.where(turned >= 12, turned - 12, turned)
        slope = np.minimum(turned - 3, 9 - turned)
        step = np.clip(slope, -1, 1)
        channels.append(255 * (lightness - reach * step))
    return to_image(np.stack(channels, axis=-1))


def to_image(values: Float[ndarray, "h w 3"]) -> Image.Image:
    """Returns the image of values in [0, 255], rounded and clipped."""
    rounded = np.rint(values)
    pixels = np.clip(rounded, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels, "RGB")


def hue(image: Image.Image, scale: Real, offset: Real) -> Image.Image:
    """Scales and shifts the hue: (hue * scale + offset) mod 360, in degrees."""
    hsl = to_hsl(image)
    degrees = hsl[..., 0]
    hsl[..., 0] = (degrees * scale + offset) % 360
    return from_hsl(hsl)


def saturation(image: Image.Image, scale: Real, offset: Real) -> Image.Image:
    """Scales and shifts the saturation: clip(saturation * scale + offset, 0, 255)."""
    hsl = to_hsl(image)
    scaled = hsl[..., 1] * scale + offset
    hsl[..., 1] = np.clip(scaled, 0, 255)
    return from_hsl(hsl)


def lightness(image: Image.Image, offset: Real) -> Image.Image:
    """Shifts the lightness: clip(lightness + offset, 0, 255)."""
    hsl = to_hsl(image)
    shifted = hsl[..., 2] + offset
    hsl[..., 2] = np.clip(shifted, 0, 255)
    return from_hsl(hsl)


def hsl_as_rgb(image: Image.Image) -> Image.Image:
    """Reads hue, saturation and lightness, each scaled to [0, 255], as red, green and blue."""
    hsl = to_hsl(image)
    scales = np.array([255 / 360, 1, 1], dtype=np.float32)
    return to_image(hsl * scales)


def identity(image: Image.Image) -> Image.Image:
    """Returns the image as it is."""
    return image


def grayscale(image: Image.Image) -> Image.Image:
    """Keeps the luma alone (ITU-R 601-2)."""
    return image.convert("L").convert("RGB")


def invert(image: Image.Image) -> Image.Image:
    """Inverts every value: 255 - value."""
    return ImageOps.invert(image)


def solarize(image: Image.Image, threshold: int) -> Image.Image:
    """Inverts every value above `threshold`."""
    return ImageOps.solarize(image, threshold + 1)  # PIL inverts its threshold, too


def posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keeps the highest `bits` bits of each value."""
    return ImageOps.posterize(image, bits)


def quantize(image: Image.Image, colours: int) -> Image.Image:
    """Replaces the colours by the centroids of so many clusters of them.

    The clusters are those of k-means, which starts from the parts of a median cut. The paper names
    no algorithm of clustering.

    Args:
        image: The image.
        colours: From 1 to 256.
    """
    # A median cut alone gives pixels colours that are not their mean. 1 is the number of pixels
    # that may still change their cluster when k-means stops.
    quantized = image.quantize(colours, Image.Quantize.MEDIANCUT, kmeans=1)
    return quantized.convert("RGB")
