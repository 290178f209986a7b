"""95 % intervals, and the metrics that carry them."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.value import MetricValue

Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution


def wilson(successes: int, n: int) -> tuple[float, float]:
    r"""Wilson's 95 % interval of a proportion $p = k / n$.

    $\frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}$: right for small n and at 0
    and 1, where the normal interval has no width. Source: Wilson 1927.

    Args:
        successes: k, between 0 and n.
        n: Number of items.

    Raises:
        UserError: n is not positive, or k is not between 0 and n.

    Example:
        >>> low, high = wilson(45, 210)  # Cola's CLIP: 21.4 %
        >>> round(low, 4), round(high, 4)
        (0.1642, 0.2747)
    """
    if n <= 0 or not 0 <= successes <= n:
        raise UserError(f"expected 0 to n successes of n > 0 items, got {successes} of {n}")
    p, z2 = successes / n, Z95**2
    centre = p + z2 / (2 * n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    scale = 1 + z2 / n
    # Exact at the ends, where rounding would leave 1e-17.
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == n else (centre + half) / scale
    return low, high


def bootstrap(
    values: Float[Tensor, "n"], seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean, resampling the n items.

    The same values and seed give the same interval; the global random state is left alone.

    Raises:
        UserError: Fewer than two values (no spread to resample), or one is not finite.

    Example:
        >>> low, high = bootstrap(torch.tensor([0.0, 1.0] * 50))
        >>> 0.38 < low < 0.42 and 0.58 < high < 0.62
        True
    """
    n = len(values)
    if n < 2 or not torch.isfinite(values).all():
        raise UserError(f"expected at least two finite values for an interval, got {n} values")
    values = values.detach().double().cpu()
    generator = torch.Generator().manual_seed(seed)
    # In parts, so that memory does not grow with resamples x n.
    part = max(1, 2_000_000 // n)
    means = []
    for start in range(0, resamples, part):
        rows = min(part, resamples - start)
        means.append(values[torch.randint(n, (rows, n), generator=generator)].mean(dim=1))
    low, high = torch.cat(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return float(low), float(high)


def proportion(wins: Bool[Tensor, "n"], chance: float | None = None) -> MetricValue:
    """The share of wins with Wilson's interval.

    Raises:
        UserError: There are no items.

    Example:
        >>> proportion(torch.tensor([True, False, False, False]), chance=0.25).value
        0.25
    """
    n, successes = len(wins), int(wins.sum())
    low, high = wilson(successes, n)
    return MetricValue(successes / n, n, chance, low, high)


def average(
    values: Float[Tensor, "n"],
    chance: float | None = None,
    higher_is_better: bool = True,
    unit: str = "fraction",
) -> MetricValue:
    """The mean of n values with its bootstrap interval (none for a single value).

    Raises:
        UserError: There are no values, or one is not finite.

    Example:
        >>> average(torch.tensor([1.0, 3.0]), unit="rank").value
        2.0
    """
    n = len(values)
    if not n:
        raise UserError("expected values to average, got none: check the benchmark's files")
    low, high = bootstrap(values) if n > 1 else (None, None)
    return MetricValue(float(values.double().mean()), n, chance, low, high, higher_is_better, unit)
