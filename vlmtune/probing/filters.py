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
from vlmtune.probing.parameters import Real

SAMPLES = 4  # of the path of a motion, for each pixel of its length


def gaussian_blur(image: Image.Image, radius: Real) -> Image.Image:
    """Blurs by a Gaussian whose standard deviation is `radius` pixels."""
    return image.filter(ImageFilter.GaussianBlur(radius))


def motion_blur(image: Image.Image, length: Real, angle: Real) -> Image.Image:
    """Averages the image along a line of `length` pixels at `angle` degrees, edges repeated.

    Appendix C.3 moves an image "by a given length (in pixels)" and calls the parameter a radius;
    here it is the length, as in C.2.
    """
    # The mean over a line is a convolution with the line as its kernel.
    kernel = motion_kernel(length, angle)
    reach = len(kernel) // 2
    values = np.asarray(image, dtype=np.float32)
    margins = ((reach, reach), (reach, reach), (0, 0))
    padded = np.pad(values, margins, mode="edge")
    height, width = values.shape[:2]
    # Most weights are 0: a sum of shifted images is faster than a convolution.
    total = np.zeros_like(values)
    for row, column in np.argwhere(kernel > 0):
        shifted = padded[row : row + height, column : column + width]
        total += kernel[row, column] * shifted
    return to_image(total)


def motion_kernel(length: Real, angle: Real) -> Float[ndarray, "k k"]:
    """Returns the weights of a motion, which add up to 1; k is odd.

    Example:
        >>> (10 * motion_kernel(5, 0)[3]).round().tolist()
        [0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0]
    """
    reach = math.ceil(length / 2)
    side = 2 * reach + 1
    kernel = np.zeros((side, side), dtype=np.float64)
    # The samples of the path lie evenly around its middle, which is the middle of the kernel.
    count = max(1, round(SAMPLES * length))
    fractions = (np.arange(count) + 0.5) / count
    along = (fractions - 0.5) * length
    turn = math.radians(angle)
    down = along * math.sin(turn)
    across = along * math.cos(turn)
    rows = np.rint(reach - down).astype(int)
    columns = np.rint(reach + across).astype(int)
    # `kernel[rows, columns] += ...` would count a pixel once that is sampled several times.
    np.add.at(kernel, (rows, columns), 1 / count)
    # In double precision up to here: many samples of 1 / count add up to a weight.
    return kernel.astype(np.float32)


def pixelate(image: Image.Image, factor: Real) -> Image.Image:
    """Scales down by `factor`, then up to the old size, each small pixel a block of one colour."""
    # BOX takes the mean of a block, NEAREST gives the whole block that colour.
    size = scaled_size(image, factor, factor)
    reduced = image.resize(size, Image.Resampling.BOX)
    return reduced.resize(image.size, Image.Resampling.NEAREST)


def scaled_size(image: Image.Image, width: Real, height: Real) -> tuple[int, int]:
    """The size of an image times two factors, at least 1 x 1.

    Example:
        >>> scaled_size(Image.new("RGB", (8, 6)), 0.5, 0.01)
        (4, 1)
    """
    scaled_width = round(image.width * width)
    scaled_height = round(image.height * height)
    return max(1, scaled_width), max(1, scaled_height)


def blurry_background(image: Image.Image, width: Real, height: Real, radius: Real) -> Image.Image:
    """Changes the aspect ratio of the image, with a blurred copy of it as background.

    The image is in the middle of a canvas `width` times as wide and `height` times as high, which
    shows the copy; where the canvas is smaller, the image is cut. The canvas is then scaled to the
    size of the image, so that a model which cuts out the middle sees the background.
    """
    size = scaled_size(image, width, height)
    canvas = image.resize(size, Image.Resampling.BILINEAR)
    canvas = canvas.filter(ImageFilter.GaussianBlur(radius))
    # A negative corner is right: `paste` then cuts what is outside the canvas.
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
    # `lines` is a view, so that a change of it is a change of `values`.
    lines = values
    if axis != "rows":
        lines = values.swapaxes(0, 1)
    even = lines[0::2]
    odd = lines[1::2]
    even[:] = np.roll(even, distance, axis=1)
    odd[:] = np.roll(odd, -distance, axis=1)
    return Image.fromarray(values, "RGB")
