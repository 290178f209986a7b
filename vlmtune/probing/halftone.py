"""Line halftoning: black waves on white whose amplitude is the darkness of the image.

In: an RGB image, a waveform and its sizes. Out: a black and white image of the same size.
Never: randomness. Source: Ahmed and Deussen 2016; Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from vlmtune.probing.parameters import Real

WAVEFORMS = ("sine", "triangle", "square", "sawtooth")
SAMPLES = 5  # of a wave within a column
CYCLE = 2  # amplitudes that a period is long


def wave(phase: Float[ndarray, "..."], waveform: str) -> Float[ndarray, "..."]:
    """Returns a wave of period 1 and values in [-1, 1].

    Example:
        >>> wave(np.array([0.25, 0.5, 0.75]), "triangle").tolist()
        [1.0, 0.0, -1.0]
    """
    phase = phase % 1
    if waveform == "sine":
        return np.sin(2 * np.pi * phase)
    if waveform == "triangle":
        return 1 - 4 * np.abs((phase + 0.25) % 1 - 0.5)
    if waveform == "square":
        return np.where(phase < 0.5, 1.0, -1.0)
    # The sawtooth is the last of `WAVEFORMS`.
    return 2 * phase - 1


def line_halftone(
    image: Image.Image, amplitude: Real, width: Real, waveform: str = "sine"
) -> Image.Image:
    """Draws horizontal waves, one above the other.

    Args:
        image: The image.
        amplitude: Of a wave over black, in pixels; over white a wave is a straight line.
        width: Of the lines, in pixels.
        waveform: One of `WAVEFORMS`.
    """
    grey = np.asarray(image.convert("L"), dtype=np.float32)
    height, columns = grey.shape
    # A band is as high as a wave over black.
    spacing = round(2 * amplitude) + 1
    amplitudes = amplitude * _darkness(grey, spacing)
    # A wave is sampled several times within a column, as it may rise and fall there.
    fractions = (np.arange(SAMPLES) + 0.5) / SAMPLES
    column = np.arange(columns)[:, None]
    x = column + fractions - 0.5
    period = CYCLE * amplitude
    heights = amplitudes[:, :, None] * wave(x / period, waveform)
    # A column is black from the lowest to the highest point of its part of the wave.
    low = heights.min(axis=-1) - width / 2
    high = heights.max(axis=-1) + width / 2
    middle = (spacing - 1) / 2
    y = np.arange(spacing)[:, None] - middle
    above_low = y > low[:, None]
    below_high = y < high[:, None]
    black = above_low & below_high
    black = black.reshape(-1, columns)[:height]
    drawing = np.where(black, 0, 255).astype(np.uint8)
    return Image.fromarray(drawing, "L").convert("RGB")


def _darkness(grey: Float[ndarray, "h w"], spacing: int) -> Float[ndarray, "bands w"]:
    """The darkness of each column of each band, from 0 (white) to 1."""
    height, columns = grey.shape
    bands = -(-height // spacing)
    # The last band repeats the edge of the image.
    missing = bands * spacing - height
    margins = ((0, missing), (0, 0))
    padded = np.pad(grey, margins, mode="edge")
    means = padded.reshape(bands, spacing, columns).mean(axis=1)
    return 1 - means / 255
