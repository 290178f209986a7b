"""95 % intervals of independent items: Wilson's for proportions, the bootstrap for other means.

In: outcomes of items that share nothing. Out: means with intervals. Never: a change of the global
random state.

`cluster_robust_mean` has Wilson's interval, wider where items share images or captions.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.metrics.cluster_variance import finite
from vlmtune.results.metric_value import MetricValue, Unit

Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution
ENDS = torch.tensor([0.025, 0.975], dtype=torch.float64)  # quantiles of a 95 % interval
INDICES = 2_000_000  # resampled indices held in memory at a time


def wilson_interval(p: float, n: float | int) -> tuple[float, float]:
    r"""Wilson's 95 % interval of a proportion p of n items.

    $\frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}$: right for small n and at 0
    and 1, where the normal interval has no width. n may be an effective number of items.
    Source: Wilson 1927.

    Example:
        >>> low, high = wilson_interval(45 / 210, 210)  # Cola's CLIP: 21.4 %
        >>> round(low, 4), round(high, 4)
        (0.1642, 0.2747)
    """
    z2 = Z95**2
    centre = p + z2 / (2 * n)
    scale = 1 + z2 / n
    spread = p * (1 - p) / n + z2 / (4 * n**2)
    half = Z95 * math.sqrt(spread)
    # Exact at the ends, where rounding would leave 1e-17.
    low = 0.0 if p == 0 else (centre - half) / scale
    high = 1.0 if p == 1 else (centre + half) / scale
    return low, high


def bootstrap_interval(
    values: Float[Tensor, "n"], seed: int = 0, resamples: int = 2000
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of n independent items.

    The same values and seed give the same interval.

    Example:
        >>> low, high = bootstrap_interval(torch.tensor([0.0, 1.0] * 50))
        >>> 0.38 < low < 0.42 and 0.58 < high < 0.62
        True
    """
    values = finite(values)
    n = len(values)
    generator = torch.Generator().manual_seed(seed)
    # All resamples of a large benchmark at once would not fit in memory.
    chunk = max(1, INDICES // n)
    means = []
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        rows = torch.randint(n, (count, n), generator=generator)
        means.append(values[rows].mean(dim=1))
    distribution = torch.cat(means)
    low, high = distribution.quantile(ENDS).tolist()
    return low, high


def bootstrap_mean(
    values: Float[Tensor, "n"],
    chance: float | None = None,
    higher_is_better: bool = True,
    unit: Unit = "fraction",
) -> MetricValue:
    """The mean of n values with its bootstrap interval (none for a single value).

    Example:
        >>> bootstrap_mean(torch.tensor([1.0, 3.0]), unit="rank").value
        2.0
    """
    n = len(values)
    # A single value has no spread to resample.
    low, high = (None, None) if n == 1 else bootstrap_interval(values)
    mean = float(values.double().mean())
    return MetricValue(mean, n, chance, low, high, higher_is_better, unit, clusters=n)
