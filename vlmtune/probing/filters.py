"""Transformations that make an image less clear: blur, pixels, compression, shifted lines.

In: an RGB image and parameters. Out: an RGB image. Never: randomness.
Source: Rashtchian et al. 2023, appendices C.2 and C.3.
"""

import io
import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from PIL import Image, ImageFilter

from vlmtune.probing.colours import to_image

SAMPLES = 4  # of the path of a motion, for each pixel of its length


def gaussian_blur(image: Image.Image, radius: float | int) -> Image.Image:
    """Blurs by a Gaussian whose standard deviation is `radius` pixels."""
    return image.filter(ImageFilter.GaussianBlur(radius))


def motion_blur(image: Image.Image, length: float | int, angle: float | int) -> Image.Image:
    """Averages the image along a line of `length` pixels at `angle` degrees, edges repeated.

    Appendix C.3 moves an image "by a given length (in pixels)" and calls the parameter a radius;
    here it is the length, as in C.2.
    """
    kernel = motion_kernel(length, angle)
    reach = len(kernel) // 2
    values = np.asarray(image, dtype=np.float32)
    padded = np.pad(values, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    total = np.zeros_like(values)
    height, width = values.shape[:2]
    for row, column in np.argwhere(kernel > 0):
        total += kernel[row, column] * padded[row : row + height, column : column + width]
    return to_image(total)


def motion_kernel(length: float | int, angle: float | int) -> Float[ndarray, "k k"]:
    """Returns the weights of a motion, which add up to 1; k is odd.

    Example:
        >>> (10 * motion_kernel(5, 0)[3]).round().tolist()
        [0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0]
    """
    reach = math.ceil(length / 2)
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1), dtype=np.float64)
    count = max(1, round(SAMPLES * length))
    along = ((np.arange(count) + 0.5) / count - 0.5) * length
    turn = math.radians(angle)
    rows = np.rint(reach - along * math.sin(turn)).astype(int)
    columns = np.rint(reach + along * math.cos(turn)).astype(int)
    np.add.at(kernel, (rows, columns), 1 / count)  # counts a pixel as often as it is sampled
    return kernel.astype(np.float32)


def pixelate(image: Image.Image, factor: float | int) -> Image.Image:
    """Scales down by `factor`, then up to the old size, each small pixel a block of one colour."""
    width, height = (max(1, round(side * factor)) for side in image.size)
    reduced = image.resize((width, height), Image.Resampling.BOX)
    return reduced.resize(image.size, Image.Resampling.NEAREST)


def blurry_background(
    image: Image.Image, width: float | int, height: float | int, radius: float | int
) -> Image.Image:
    """Changes the aspect ratio of the image, with a blurred copy of it as background.

    The image is in the middle of a canvas `width` times as wide and `height` times as high, which
    shows the copy; where the canvas is smaller, the image is cut. The canvas is then scaled to the
    size of the image, so that a model which cuts out the middle sees the background.
    """
    size = max(1, round(image.width * width)), max(1, round(image.height * height))
    canvas = image.resize(size, Image.Resampling.BILINEAR)
    canvas = canvas.filter(ImageFilter.GaussianBlur(radius))
    left = (canvas.width - image.width) // 2
    top = (canvas.height - image.height) // 2
    canvas.paste(image, (left, top))
    return canvas.resize(image.size, Image.Resampling.BILINEAR)


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    """Compresses as JPEG of a quality from 0 to 100."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    with Image.open(file) as compressed:
        return compressed.convert("RGB")


def line_shift(image: Image.Image, distance: int, axis: str) -> Image.Image:
    """Rotates even columns down and odd ones up, or even rows right and odd ones left.

    Args:
        image: The image.
        distance: In pixels; what leaves on one side comes back on the other.
        axis: "columns" or "rows".
    """
    values = np.array(image)
    lines = values if axis == "rows" else values.swapaxes(0, 1)
    lines[0::2] = np.roll(lines[0::2], distance, axis=1)
    lines[1::2] = np.roll(lines[1::2], -distance, axis=1)
    return Image.fromarray(values, "RGB")
