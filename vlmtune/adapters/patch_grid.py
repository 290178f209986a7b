"""The square grid that an image's patches lie in.

In: patches, row by row from the top. Out: their coordinates, and each patch with its neighbours.
Never: trained weights of its own.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu


def coordinates(patches: int) -> Float[Tensor, "t 2"]:
    """Coordinates (x, y) from -1 to 1 of the patches of a square image, row by row from the top.

    Example:
        >>> coordinates(4).tolist()
        [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    side = square_side(patches)
    steps = torch.linspace(-1, 1, side)
    x, y = torch.meshgrid(steps, steps, indexing="xy")
    return torch.stack([x, y], dim=2).flatten(0, 1)


def with_neighbours(
    patches: Float[Tensor, "n t w"], convolution: nn.Module, side: int
) -> Float[Tensor, "n t w"]:
    """Returns x + GELU(conv(x)) of the patches x of square images, row by row from the top."""
    square = patches.mT.unflatten(2, (side, side))
    neighbours = gelu(convolution(square))
    return patches + neighbours.flatten(2).mT


def square_side(patches: int) -> int:
    """The number of patches along a side of a square image.

    Example:
        >>> square_side(49)
        7
    """
    return math.isqrt(patches)
