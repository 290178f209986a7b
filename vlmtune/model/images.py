"""What people have as images, as what the scorer takes.

In: files, `ImageRef`s, PIL images, arrays, tensors, encoded bytes. Out: the first three alone.
Never: a download.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vlmtune.data.images import open_image
from vlmtune.errors import UserError
from vlmtune.storage.files import reading
from vlmtune.types import ImageRef

Picture = str | Path | ImageRef | Image.Image | np.ndarray | torch.Tensor | bytes
Images = Picture | Sequence[Picture]


def as_images(images: Images) -> list[str | Path | ImageRef | Image.Image]:
    """Returns one image or several as a list of paths, references and PIL images.

    Arrays are (height, width, 3), or (height, width) of grey, tensors (3, height, width); numbers
    are bytes from 0 to 255, or fractions from 0 to 1. Of four dimensions they are several images.

    Example:
        >>> as_images(np.zeros((4, 6, 3), np.uint8))[0].size
        (6, 4)
    """
    if isinstance(images, np.ndarray | torch.Tensor) and images.ndim == 4:
        # The first of four dimensions counts the images.
        images = list(images)
    if isinstance(images, Picture):
        images = [images]
    return [_as_image(image) for image in images]


def _as_image(image: Any) -> str | Path | ImageRef | Image.Image:
    if isinstance(image, str | Path | Image.Image | ImageRef):
        return image
    if isinstance(image, bytes):
        # As a file is read: upright, of a known format, and not too large.
        with reading("bytes", "an image", "pass the content of an image file"):
            return open_image(image)
    if isinstance(image, torch.Tensor):
        values = image.detach().cpu()
        if values.dtype == torch.bfloat16:  # numpy has no such type
            values = values.float()
        if values.ndim == 3:  # channels come first in tensors, last in arrays
            values = values.movedim(0, -1)
        return _from_array(values.numpy())
    if isinstance(image, np.ndarray):
        return _from_array(image)
    raise UserError(
        f"expected a path, a PIL image, an array, a tensor or bytes, got {type(image).__name__}: "
        "pass one of these"
    )


def _from_array(array: np.ndarray) -> Image.Image:
    """A picture of an array (height, width, 3 or 1) or (height, width)."""
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    low = high = 0.0
    if array.size:
        low = float(array.min())
        high = float(array.max())
    # Normalised values, as a model's preprocessing gives them, lie outside both ranges.
    are_fractions = np.issubdtype(array.dtype, np.floating) and 0 <= low <= high <= 1
    are_bytes = np.issubdtype(array.dtype, np.integer) and 0 <= low <= high <= 255
    is_grey = array.ndim == 2
    is_rgb = array.ndim == 3 and array.shape[-1] == 3
    has_shape = bool(array.size) and (is_grey or is_rgb)
    if not has_shape or not (are_fractions or are_bytes):
        raise UserError(
            "expected an array (height, width, 3) or a tensor (3, height, width), of bytes from 0 "
            f"to 255 or fractions from 0 to 1, got {array.dtype} of shape {array.shape}, its range "
            f"{low:g} to {high:g}: undo the normalisation or change the order of its dimensions"
        )
    if are_fractions:
        array = np.rint(array * 255)
    return Image.fromarray(array.astype(np.uint8))
