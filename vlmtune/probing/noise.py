"""Transformations that add high frequencies: noise and dithering.

In: an RGB image, parameters, and a seed where noise is random. Out: an RGB image of the same size.
Never: other noise for the same seed. Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import itertools

import numpy as np
from PIL import Image

from vlmtune.probing.colours import to_image

BAYER = np.array([[0, 2], [3, 1]], dtype=np.float32)


def gaussian_noise(image: Image.Image, sigma: float | int, seed: int) -> Image.Image:
    """Adds noise of standard deviation `sigma` to each value; 1 is the range of values."""
    values = np.asarray(image, dtype=np.float32)
    noise = np.random.default_rng(seed).standard_normal(values.shape, dtype=np.float32)
    return to_image(values + 255 * sigma * noise)


def impulse_noise(image: Image.Image, fraction: float | int, seed: int) -> Image.Image:
    """Paints half of a fraction of the pixels white, and half of it black."""
    values = np.array(image)
    count = values.shape[0] * values.shape[1]
    chosen = np.random.default_rng(seed).permutation(count)[: round(fraction * count)]
    flat = values.reshape(count, 3)
    flat[chosen[: len(chosen) // 2]] = 255
    flat[chosen[len(chosen) // 2 :]] = 0
    return Image.fromarray(values, "RGB")


def random_dithering(image: Image.Image, seed: int) -> Image.Image:
    """Sets each value to 0 or 255 by a random threshold of its pixel."""
    values = np.asarray(image)
    thresholds = np.random.default_rng(seed).integers(0, 255, (*values.shape[:2], 1))
    return Image.fromarray(np.where(values > thresholds, 255, 0).astype(np.uint8), "RGB")


def ordered_dithering(image: Image.Image) -> Image.Image:
    """Sets each value to 0 or 255 by the thresholds of Bayer's 2 x 2 matrix, repeated."""
    values = np.asarray(image)
    height, width = values.shape[:2]
    thresholds = np.tile((BAYER + 0.5) / 4 * 255, (height // 2 + 1, width // 2 + 1))
    above = values > thresholds[:height, :width, None]
    return Image.fromarray(np.where(above, 255, 0).astype(np.uint8), "RGB")


def floyd_steinberg(image: Image.Image, bits: int) -> Image.Image:
    """Reduces each value to 1 or 2 bits and spreads the error to the pixels around it."""
    levels = [round(255 * i / (2**bits - 1)) for i in range(2**bits)]
    colours = itertools.product(levels, repeat=3)
    palette = Image.new("P", (1, 1))
    palette.putpalette(list(itertools.chain.from_iterable(colours)))
    return image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).convert("RGB")
