"""The grid of rows and columns that an image's patches lie in.

In: patches, row by row from the top. Out: their coordinates, and each patch with its neighbours.
Never: trained weights of its own.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu


def coordinates(rows: int, columns: int) -> Float[Tensor, "t 2"]:
    """Coordinates (x, y) from -1 to 1 of the patches of an image, row by row from the top.

    Example:
        >>> coordinates(1, 3).tolist()
        [[-1.0, -1.0], [0.0, -1.0], [1.0, -1.0]]
    """
    across = torch.linspace(-1, 1, columns)
    down = torch.linspace(-1, 1, rows)
    x, y = torch.meshgrid(across, down, indexing="xy")
    return torch.stack([x, y], dim=2).flatten(0, 1)


def with_neighbours(
    patches: Float[Tensor, "n t w"], convolution: nn.Module, grid: tuple[int, int]
) -> Float[Tensor, "n t w"]:
    """Returns x + GELU(conv(x)) of the patches x of images with a grid of rows and columns."""
    in_grid = patches.mT.unflatten(2, grid)
    neighbours = gelu(convolution(in_grid))
    return patches + neighbours.flatten(2).mT
