"""Means over items that share images, with cluster-robust 95 % intervals.

Items of one image are not independent: a model that misreads the image errs on all of them. The
variance is therefore that of the totals of clusters (images), linearised for the mean:
`V = C / (C - 1) * sum_c (sum_{i in c} w_i (y_i - ybar))^2` for C clusters and weights w that sum
to 1. The interval of a mean in [0, 1] is Wilson's with the effective number of items n / D. The
design effect D is V over the variance of independent items, `p (1 - p) / (n - 1)`, and at least 1.
So the interval never leaves [0, 1], is never narrower than for independent items, and equals
Wilson's if no two items share an image.
Source: Dean and Pagano 2015, "Evaluating Confidence Interval Methods for Binomial Proportions in
Clustered Surveys".
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.intervals import Z95, wilson_interval
from vlmtune.metrics.item_groups import group_means
from vlmtune.metrics.value import MetricValue


def cluster_robust_mean(
    values: Float[Tensor, "n"], clusters: Int[Tensor, "n"], chance: float | None = None
) -> MetricValue:
    """The mean of n values in [0, 1] with its interval.

    Args:
        values: The outcome of each item, in [0, 1].
        clusters: The image of each item, as integers from 0.
        chance: What random scores reach.

    Example:
        >>> values = torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> apart = cluster_robust_mean(values, torch.arange(4))
        >>> together = cluster_robust_mean(values, torch.tensor([0, 0, 1, 1]))
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
        values: The outcome of each item, in [0, 1].
        groups: The group of each item; -1 leaves the item out.
        clusters: The image of each item, as integers from 0.
        chance: What random scores reach.
        weights: Weight of each group that has items, in the order of their numbers, up to
            a factor; None gives all groups the same weight.

    Example:
        >>> values, groups = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1, 1])
        >>> macro_mean(values, groups, torch.arange(5)).value
        0.75
    """
    counted = groups >= 0
    values, clusters = _checked(values[counted]), clusters[counted]
    means, member, sizes = group_means(values, groups[counted])
    weights = torch.ones_like(means) if weights is None else weights.double()
    # Divide last, so that means of 1 give exactly 1.
    mean = float((weights * means).sum() / weights.sum())
    item_weights = (weights / weights.sum() / sizes)[member]
    variance = _variance(item_weights * (values - means[member]), clusters)
    low, high = _interval(mean, variance, len(values), clusters)
    return MetricValue(mean, len(sizes), chance, low, high)


def cluster_robust_rank(
    ranks: Float[Tensor, "n"], clusters: Int[Tensor, "n"], chance: float | None = None
) -> MetricValue:
    """The mean of n ranks, lower being better, with the normal interval (never below 1).

    Example:
        >>> cluster_robust_rank(torch.tensor([1.0, 2.0, 6.0]), torch.arange(3)).value
        3.0
    """
    if not len(ranks) or not bool((ranks >= 1).all()):
        raise UserError(f"expected ranks from 1, got {len(ranks)} values: check the benchmark")
    ranks = ranks.detach().double()
    mean = float(ranks.mean())
    half = Z95 * math.sqrt(_variance((ranks - mean) / len(ranks), clusters))
    low, high = (max(1.0, mean - half), mean + half) if len(clusters.unique()) > 1 else (None, None)
    return MetricValue(mean, len(ranks), chance, low, high, higher_is_better=False, unit="rank")


def cluster_totals(values: Float[Tensor, "n"], clusters: Int[Tensor, "n"]) -> Float[Tensor, "c"]:
    """Sums the values of each cluster, in the order of the clusters' numbers."""
    numbers, member = torch.unique(clusters, return_inverse=True)
    return torch.zeros(len(numbers), dtype=values.dtype).index_add(0, member, values)


def connected_components(members: Int[Tensor, "n k"]) -> Int[Tensor, "n"]:
    """Clusters n items that each have k images: items that share an image get the same number.

    Items that are linked through others get the same number, too. The numbers count from 0 in
    order of appearance.

    Args:
        members: The images of each item.

    Example:
        >>> connected_components(torch.tensor([[0, 1], [4, 5], [2, 1], [2, 3]])).tolist()
        [0, 1, 0, 0]
    """
    if not members.numel():
        return torch.zeros(len(members), dtype=torch.int64)
    parent = list(range(int(members.max()) + 1))

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    rows = members.tolist()
    for first, *others in rows:
        for other in others:
            parent[root(other)] = root(first)
    roots = [root(row[0]) for row in rows]
    number = {member: i for i, member in enumerate(dict.fromkeys(roots))}
    return torch.tensor([number[member] for member in roots])


def _checked(values: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    if not len(values) or not bool(((values >= 0) & (values <= 1)).all()):
        raise UserError(
            f"expected values between 0 and 1 to average, got {len(values)} values: "
            "check the benchmark's files"
        )
    return values.detach().double()


def _variance(deviations: Float[Tensor, "n"], clusters: Int[Tensor, "n"]) -> float:
    totals = cluster_totals(deviations, clusters)
    return float((totals**2).sum()) * len(totals) / max(1, len(totals) - 1)


def _interval(
    mean: float, variance: float, n: int, clusters: Int[Tensor, "n"]
) -> tuple[float, float]:
    """Wilson's interval with the effective number of items."""
    spread = mean * (1 - mean)
    # Without spread the dependence is unknown, so each image counts once.
    effective = float(len(clusters.unique()))
    if variance > 0 and spread > 0 and n > 1:
        effective = n * min(1.0, spread / ((n - 1) * variance))
    return wilson_interval(mean, effective)
