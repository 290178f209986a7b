"""A smooth curve of where numbers lie."""

import numpy as np
from jaxtyping import Float
from numpy import ndarray


def density(values: Float[ndarray, "n"], grid: Float[ndarray, "p"]) -> Float[ndarray, "p"]:
    r"""Gaussian kernel estimate of the density of `values`, at each point of `grid`.

    The bandwidth is $0.9 \min(s, IQR / 1.34)\, n^{-1/5}$. Numbers that are never negative (or
    within 0 and 1) keep all their weight there: what the kernel puts beyond the bound is folded
    back. Source: Silverman 1986, sections 2.10 and 3.4.2.

    Args:
        values: At least two different numbers.
        grid: Increasing points.

    Example:
        >>> grid = np.linspace(0.0, 3.0, 301)
        >>> curve = density(np.array([0.0, 0.1, 0.2, 0.5]), grid)
        >>> round(float(np.trapezoid(curve, grid)), 3)
        1.0
    """
    quarters = np.quantile(values, [0.25, 0.75])
    spread = values.std(ddof=1)
    middle = (quarters[1] - quarters[0]) / 1.34
    width = 0.9 * (min(spread, middle) if middle > 0 else spread) * len(values) ** -0.2
    curve = _kernels(values, grid, width)
    if values.min() >= 0:
        curve += _kernels(-values, grid, width)
        if values.max() <= 1:
            curve += _kernels(2 - values, grid, width)
            curve[grid > 1] = 0
        curve[grid < 0] = 0
    return curve


def _kernels(
    values: Float[ndarray, "n"], grid: Float[ndarray, "p"], width: float
) -> Float[ndarray, "p"]:
    total = np.zeros_like(grid)
    # In parts: a series has tens of thousands of items.
    for part in np.array_split(values, len(values) // 10_000 + 1):
        total += np.exp(-0.5 * ((grid[:, None] - part) / width) ** 2).sum(axis=1)
    return total / (len(values) * width * np.sqrt(2 * np.pi))
