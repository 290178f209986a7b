"""Means over items that share images, with 95 % intervals that know it.

Items of one image are not independent: a model that sees the image wrongly errs on all of them.
The variance is therefore that of totals over clusters (images), linearised for the mean:
`V = C / (C - 1) * sum_c (sum_{i in c} w_i (y_i - ybar))^2` for C clusters and weights w that sum
to 1. An interval of a mean in [0, 1] is Wilson's with the effective number of items n / D, where
the design effect D is V over the variance of independent items, `p (1 - p) / (n - 1)`, and at least
1: it never leaves [0, 1], never is narrower than for independent items, and is Wilson's own where
each item has an image to itself.
Source: Dean and Pagano 2015, "Evaluating Confidence Interval Methods for Binomial Proportions in
Clustered Surveys".
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.grouped import group_means
from vlmtune.metrics.intervals import Z95
from vlmtune.metrics.value import MetricValue


def clustered_mean(
    values: Float[Tensor, "n"],
    clusters: Int[Tensor, "n"],
    chance: float | None = None,
) -> MetricValue:
    """The mean of n values in [0, 1] with its interval.

    Args:
        values: What each item earns, in [0, 1].
        clusters: Number of the image of each item, any integers from 0.
        chance: What random scores reach.

    Raises:
        UserError: There are no values, or one is outside [0, 1].

    Example:
        >>> values = torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> apart = clustered_mean(values, torch.arange(4))
        >>> together = clustered_mean(values, torch.tensor([0, 0, 1, 1]))
        >>> apart.value == together.value and together.high > apart.high
        True
    """
    values = _checked(values)
    mean = float(values.mean())
    variance = _variance((values - mean) / len(values), clusters)
    low, high = _interval(mean, variance, len(values), clusters)
    return MetricValue(mean, len(values), chance, low, high)


def macro_mean(
    values: Float[Tensor, "n"],
    groups: Int[Tensor, "n"],
    clusters: Int[Tensor, "n"],
    chance: float | None = None,
    weights: Float[Tensor, "g"] | None = None,
) -> MetricValue:
    """The mean over groups of the mean within each, with its interval; `n` counts the groups.

    Args:
        values: What each item earns, in [0, 1].
        groups: Number of the group of each item; -1 leaves the item out.
        clusters: Number of the image of each item, any integers from 0.
        chance: What random scores reach.
        weights: Weight of each group that has items, in the order of their numbers, up to
            a factor; None weighs all alike.

    Raises:
        UserError: There are no values, or one is outside [0, 1].

    Example:
        >>> values, groups = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1, 1])
        >>> macro_mean(values, groups, torch.arange(5)).value
        0.75
    """
    kept = groups >= 0
    values, clusters = _checked(values[kept]), clusters[kept]
    means, member, sizes = group_means(values, groups[kept])
    weights = torch.ones_like(means) if weights is None else weights.double()
    # Divided last, so that means of 1 give exactly 1.
    mean = float((weights * means).sum() / weights.sum())
    shares = weights / weights.sum() / sizes
    variance = _variance(shares[member] * (values - means[member]), clusters)
    low, high = _interval(mean, variance, len(values), clusters)
    return MetricValue(mean, len(sizes), chance, low, high)


def clustered_rank(
    ranks: Float[Tensor, "n"], clusters: Int[Tensor, "n"], chance: float | None = None
) -> MetricValue:
    """The mean of n ranks, lower being better, with the normal interval (never below 1).

    Raises:
        UserError: There are no ranks, or one is below 1.

    Example:
        >>> clustered_rank(torch.tensor([1.0, 2.0, 6.0]), torch.arange(3)).value
        3.0
    """
    if not len(ranks) or not bool((ranks >= 1).all()):
        raise UserError(f"expected ranks from 1, got {len(ranks)} values: check the benchmark")
    ranks = ranks.detach().double()
    mean = float(ranks.mean())
    half = Z95 * math.sqrt(_variance((ranks - mean) / len(ranks), clusters))
    low, high = (max(1.0, mean - half), mean + half) if len(clusters.unique()) > 1 else (None, None)
    return MetricValue(mean, len(ranks), chance, low, high, higher_is_better=False, unit="rank")


def _checked(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    if not len(values) or not bool(((values >= 0) & (values <= 1)).all()):
        raise UserError(
            f"expected values between 0 and 1 to average, got {len(values)} values: "
            "check the benchmark's files"
        )
    return values.detach().double()


def _variance(shares: Float[Tensor, "n"], clusters: Int[Tensor, "n"]) -> float:
    """Variance of the sum of the shares, whole clusters being what varies."""
    _, member = torch.unique(clusters, return_inverse=True)
    count = int(member.max()) + 1
    totals = torch.zeros(count, dtype=shares.dtype).index_add(0, member, shares)
    return float((totals**2).sum()) * count / max(1, count - 1)


def _interval(
    mean: float, variance: float, n: int, clusters: Int[Tensor, "n"]
) -> tuple[float, float]:
    """Wilson's interval with the effective number of items."""
    spread = mean * (1 - mean)
    # Without spread nothing is known of the dependence: one image may count no more than once.
    count = len(clusters.unique())
    effective = float(count)
    if variance > 0 and spread > 0 and n > 1:
        effective = n * min(1.0, spread / ((n - 1) * variance))
    z2 = Z95**2
    centre, scale = mean + z2 / (2 * effective), 1 + z2 / effective
    half = Z95 * math.sqrt(spread / effective + z2 / (4 * effective**2))
    low = 0.0 if mean == 0 else (centre - half) / scale
    high = 1.0 if mean == 1 else (centre + half) / scale
    return low, high
