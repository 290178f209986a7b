r"""Means over items that share images or captions, with cluster-robust 95 % intervals.

In: the outcome of each item and what it shares with others. Out: means with intervals. Never: an
interval narrower than for independent items.

The interval of a mean in [0, 1] is Wilson's with an effective number of items $n / (D T)$. The
design effect D is the variance of `cluster_variance` over the variance of independent items,
$p (1 - p) / (n - 1)$, and at least 1. $T = (t_f / t_{n-1})^2$ holds Student's quantiles: a variance
with few degrees of freedom f is itself uncertain. C clusters never say more than C items that are
all right, or all wrong: near 1 and 0 the dependence within clusters cannot be seen. So the interval
never leaves [0, 1], is never narrower than for independent items, and equals Wilson's if no two
items share anything.
Source: Dean and Pagano 2015, "Evaluating Confidence Interval Methods for Binomial Proportions in
Clustered Surveys"; T, Korn and Graubard 1998.

In simulations, 95 % intervals of 5 to 80 clusters of one size cover the true value in 93 to 99 % of
cases (p .5 and .9, correlation within clusters .3 and .8). So do clusters of 1 to 40 items, except
for 92 % with p .9, correlation .8 and 80 clusters.
"""

import torch
from jaxtyping import Float, Int
from scipy.sparse import csgraph, csr_array
from torch import Tensor

from vlmtune.metrics.cluster_variance import (
    Clusters,
    Variance,
    cluster_variance,
    finite,
    mean_variance,
)
from vlmtune.metrics.intervals import wilson_interval
from vlmtune.metrics.item_groups import group_means
from vlmtune.metrics.student import t_quantile
from vlmtune.results.metric_value import MetricValue

ROUNDING = 1e-20  # a smaller variance is that of sums in floating point


def cluster_robust_mean(
    values: Float[Tensor, "n"], clusters: Clusters, chance: float | None = None
) -> MetricValue:
    """The mean of n values in [0, 1] with its interval.

    Args:
        values: The outcome of each item, in [0, 1].
        clusters: The image of each item as any integers; (n, 2) for its image and its captions.
        chance: What random scores reach.

    Example:
        >>> values = torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> apart = cluster_robust_mean(values, torch.arange(4))
        >>> together = cluster_robust_mean(values, torch.tensor([0, 0, 1, 1]))
        >>> apart.value == together.value and together.high > apart.high
        True
    """
    values = finite(values, 0.0, 1.0)
    n = len(values)
    mean = float(values.mean())
    variance = mean_variance(values - mean, clusters)
    low, high = proportion_interval(mean, variance, n)
    return MetricValue(mean, n, chance, low, high, clusters=variance.clusters)


def macro_mean(
    values: Float[Tensor, "n"],
    groups: Int[Tensor, "n"],
    clusters: Clusters,
    chance: float | None = None,
    weights: Float[Tensor, "g"] | None = None,
) -> MetricValue:
    """The mean over groups of the mean within each, with its interval; `n` counts the groups.

    Args:
        values: The outcome of each item, in [0, 1].
        groups: The group of each item; -1 leaves the item out.
        clusters: The image of each item as any integers; (n, 2) for its image and its captions.
        chance: What random scores reach.
        weights: Weight of each group that has items, in the order of their numbers, up to
            a factor; None gives all groups the same weight.

    Example:
        >>> values, groups = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1, 1])
        >>> macro_mean(values, groups, torch.arange(5)).value
        0.75
    """
    counted = groups >= 0  # others have no group
    values = finite(values[counted], 0.0, 1.0)
    means, member, sizes = group_means(values, groups[counted])
    if weights is None:
        weights = torch.ones_like(means)
    weights = weights.double()
    total = weights.sum()
    # Divide last, so that means of 1 give exactly 1.
    mean = float((weights * means).sum() / total)
    # An item has the weight of its group, divided by the items of the group.
    item_weights = (weights / total / sizes)[member]
    # m items deviate less from their own mean than from the true one, by the root of (m - 1) / m.
    # A single item does not deviate from its own mean at all, so the mean over groups stands in.
    items = sizes[member].double()
    corrected = (values - means[member]) * (items / (items - 1)).sqrt()
    deviations = item_weights * torch.where(items > 1, corrected, values - mean)
    variance = cluster_variance(deviations, item_weights, clusters[counted])
    low, high = proportion_interval(mean, variance, len(values))
    return MetricValue(mean, len(sizes), chance, low, high, clusters=variance.clusters)


def cluster_robust_rank(
    ranks: Float[Tensor, "n"], clusters: Clusters, chance: float | None = None
) -> MetricValue:
    """The mean of n ranks, lower being better, with the interval by Student's t (never below 1).

    Example:
        >>> cluster_robust_rank(torch.tensor([1.0, 2.0, 6.0]), torch.arange(3)).value
        3.0
    """
    ranks = finite(ranks, least=1.0)
    mean = float(ranks.mean())
    variance = mean_variance(ranks - mean, clusters)
    low, high = variance.interval(mean, least=1.0)
    return MetricValue(
        mean,
        len(ranks),
        chance,
        low,
        high,
        higher_is_better=False,
        unit="rank",
        clusters=variance.clusters,
    )


def mean_cosine(values: Float[Tensor, "n"], clusters: Clusters, degree: int = 1) -> MetricValue:
    r"""The mean of the cosines of n samples, with a 95 % interval over clusters of them.

    The interval is Student's, with the variance of the totals of clusters. A mean over pairs varies
    with both samples of a pair: to first order its deviation is twice that of the mean over samples
    (Hoeffding 1948, section 5), so `degree` is 2.

    Args:
        values: The value of each sample, in [-1, 1].
        clusters: The object of each sample; samples of one object are not independent.
        degree: 1 for a mean over samples, 2 for a mean over pairs of samples.

    Example:
        >>> mean_cosine(torch.tensor([0.25, 0.5]), torch.tensor([0, 1])).value
        0.375
    """
    values = finite(values)
    n = len(values)
    mean = float(values.mean())
    deviations = degree * (values - mean)
    variance = mean_variance(deviations, clusters)
    low, high = variance.interval(mean, -1.0, 1.0)
    return MetricValue(mean, n, 0.0, low, high, unit="cosine", clusters=variance.clusters)


def proportion_interval(mean: float, variance: Variance, n: int) -> tuple[float, float]:
    """The 95 % interval of a mean of n values in [0, 1]: Wilson's of as many items as it is worth.

    Example:
        >>> low, high = proportion_interval(0.5, Variance(0.0025, 9, 10), 400)
        >>> round(low, 3), round(high, 3)  # half as wide as the mean of 100 items: 0.5 / sqrt(100)
        (0.39, 0.61)
    """
    spread = mean * (1 - mean)  # the variance of one item that is right or wrong
    # Without spread the dependence is unknown, so each cluster counts once.
    effective = float(variance.clusters)
    if variance.value > ROUNDING and spread > 0 and variance.freedom > 0:
        design = max(1.0, (n - 1) * variance.value / spread)
        quantile_ratio = t_quantile(variance.freedom) / t_quantile(n - 1)
        effective = n / (design * quantile_ratio**2)
    low, high = wilson_interval(mean, effective)
    # Clusters never say more than as many items that are all right, or all wrong.
    least, _ = wilson_interval(1.0, variance.clusters)
    return min(low, least), max(high, 1 - least)


def connected_components(members: Int[Tensor, "n k"]) -> Int[Tensor, "n"]:
    """Clusters n items that each have k images: items that share an image get the same number.

    Items that are linked through others get the same number, too. The numbers count from 0 in
    order of appearance.

    Example:
        >>> connected_components(torch.tensor([[0, 1], [4, 5], [2, 1], [2, 3]])).tolist()
        [0, 1, 0, 0]
    """
    n, k = members.shape
    if not n:
        return torch.zeros(0, dtype=torch.int64)
    # A graph of items and images. Items come first, so components count in their order.
    item = torch.arange(n).repeat_interleave(k)
    image = n + members.flatten()
    # A matrix of all nodes: an item of row i has an image in column n + j.
    size = int(image.max()) + 1
    edges = torch.ones(n * k)
    graph = csr_array((edges, (item, image)), shape=(size, size))
    _, components = csgraph.connected_components(graph, directed=False)
    return torch.from_numpy(components[:n]).long()
