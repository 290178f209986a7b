"""Token states in one byte a number.

In: rows of floats. Out: int8 rows and their scales, and back. Never: a scale that two rows share.
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

LEVELS = 127  # of int8 on either side of 0; -128 has no counterpart


def quantise(
    values: Float[Tensor, "r w"],
) -> tuple[Int8[Tensor, "r w"], Float[Tensor, "r"]]:
    r"""Rounds each row to integers from -127 to 127 and returns them with the scales of the rows.

    $s_i = \max_j |x_{ij}| / 127$ and $q_{ij} = \mathrm{round}(x_{ij} / s_i)$, so that $s_i q_{ij}$
    differs from $x_{ij}$ by at most $s_i / 2 = \max_j |x_{ij}| / 254$. A row of zeros has the
    scale 0 and stays exact.

    Example:
        >>> numbers, scales = quantise(torch.tensor([[1.27, -0.5], [0.0, 0.0]]))
        >>> numbers.tolist(), float(scales[1])
        ([[127, -50], [0, 0]], 0.0)
    """
    values = values.float()
    scales = values.abs().amax(dim=1) / LEVELS
    # A row of zeros is divided by 1.
    divisors = torch.where(scales > 0, scales, torch.ones_like(scales))
    rounded = (values / divisors[:, None]).round()
    numbers = rounded.clamp(-LEVELS, LEVELS)
    return numbers.to(torch.int8), scales


def restore(numbers: Int8[Tensor, "*r w"], scales: Float[Tensor, "*r"]) -> Float[Tensor, "*r w"]:
    """Returns the rows that `quantise` rounded: each number times the scale of its row."""
    return numbers.float().mul_(scales[..., None])  # in place: it is as large as all the rest
