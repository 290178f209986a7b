"""Transformations that add high frequencies: noise and dithering.

In: an RGB image, parameters, and a seed where noise is random. Out: an RGB image of the same size.
Never: other noise for the same seed. Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import itertools

import numpy as np
from jaxtyping import Bool
from numpy import ndarray
from PIL import Image

from vlmtune.probing.colours import to_image
from vlmtune.probing.parameters import Real

BAYER = np.array([[0, 2], [3, 1]], dtype=np.float32)


def gaussian_noise(image: Image.Image, sigma: Real, seed: int) -> Image.Image:
    """Adds noise of standard deviation `sigma` to each value; 1 is the range of values."""
    values = np.asarray(image, dtype=np.float32)
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal(values.shape, dtype=np.float32)
    # `to_image` clips, so that white and black pixels get half of the noise.
    return to_image(values + 255 * sigma * noise)


def impulse_noise(image: Image.Image, fraction: Real, seed: int) -> Image.Image:
    """Paints half of a fraction of the pixels white, and half of it black."""
    # A copy that may be written to: `asarray` gives a view of PIL's memory.
    values = np.array(image)
    flat = values.reshape(-1, 3)  # a view: what is painted here is painted in `values`
    count = len(flat)
    generator = np.random.default_rng(seed)
    order = generator.permutation(count)
    chosen = order[: round(fraction * count)]
    half = len(chosen) // 2
    flat[chosen[:half]] = 255
    flat[chosen[half:]] = 0
    return Image.fromarray(values, "RGB")


def random_dithering(image: Image.Image, seed: int) -> Image.Image:
    """Sets each value to 0 or 255 by a random threshold of its pixel."""
    values = np.asarray(image)
    height, width = values.shape[:2]
    generator = np.random.default_rng(seed)
    # One threshold a pixel for its three channels: grey stays black or white.
    thresholds = generator.integers(0, 255, (height, width, 1))
    return _two_levels(values > thresholds)


def ordered_dithering(image: Image.Image) -> Image.Image:
    """Sets each value to 0 or 255 by the thresholds of Bayer's 2 x 2 matrix, repeated."""
    values = np.asarray(image)
    height, width = values.shape[:2]
    cell = (BAYER + 0.5) / 4 * 255
    # One cell more than fits covers images of an odd side.
    repeats = (height // 2 + 1, width // 2 + 1)
    thresholds = np.tile(cell, repeats)
    thresholds = thresholds[:height, :width, None]
    return _two_levels(values > thresholds)


def _two_levels(above: Bool[ndarray, "h w 3"]) -> Image.Image:
    """An image of the value 255 where a value is above its threshold, and 0 elsewhere."""
    pixels = np.where(above, 255, 0).astype(np.uint8)
    return Image.fromarray(pixels, "RGB")


def floyd_steinberg(image: Image.Image, bits: int) -> Image.Image:
    """Reduces each value to 1 or 2 bits and spreads the error to the pixels around it."""
    highest = 2**bits - 1
    levels = [round(255 * i / highest) for i in range(2**bits)]
    # PIL spreads errors only if it reduces an image to a palette: here all colours of the levels.
    colours = itertools.product(levels, repeat=3)
    palette = Image.new("P", (1, 1))
    palette.putpalette(list(itertools.chain.from_iterable(colours)))
    dithered = image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    return dithered.convert("RGB")
