r"""How much a mean varies if items share images or captions, and how well that is known.

In: weighted deviations from a mean and the cluster of each. Out: the variance of the mean and its
degrees of freedom.

Items of one image or caption are not independent: a model that misreads it errs on all of them.
The variance of a mean $\sum_i w_i y_i$ is therefore that of the totals of clusters,
$V = \sum_c (\sum_{i \in c} w_i (y_i - \bar y))^2 / (1 - s_c)$ with the share $s_c$ of a cluster in
the weights, which sum to 1. For C clusters of one size that is the familiar factor C / (C - 1).
Source: Bell and McCaffrey 2002, "Bias reduction in standard errors for linear regression with
multi-stage samples" (CR2).

Items that share images and, apart, captions have clusters of two ways. V is then the sum of both
variances minus that for clusters of items that share both, and never less than either.
Source: Cameron, Gelbach and Miller 2011, "Robust inference with multiway clustering", section 2.1.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.student import freedom_of, t_quantile

Clusters = Int[Tensor, "n *ways"]
"""The cluster of each item as any integers, (n,); or (n, 2), its image and its captions."""


@dataclass(frozen=True)
class Variance:
    """The estimated variance of a mean.

    Attributes:
        value: The variance.
        freedom: Its degrees of freedom: few if it is estimated from few clusters, or mostly from
            one large cluster; 0 with a single cluster.
        clusters: The number of clusters; if items have clusters of two ways, the smaller number.
    """

    value: float
    freedom: float | int
    clusters: int

    @property
    def half_width(self) -> float | None:
        """Half the width of the mean's 95 % interval by Student's t; None with a single cluster."""
        if not self.freedom:
            return None
        return t_quantile(self.freedom) * math.sqrt(self.value)

    def interval(
        self, mean: float, least: float = -math.inf, most: float = math.inf
    ) -> tuple[float, float] | tuple[None, None]:
        """The 95 % interval of a mean by Student's t, cut to [least, most]; None as `half_width`.

        Example:
            >>> low, high = Variance(0.01, 9, 10).interval(0.9, most=1.0)
            >>> round(low, 3), high
            (0.674, 1.0)
        """
        half = self.half_width
        if half is None:
            return None, None
        return max(least, mean - half), min(most, mean + half)


def cluster_variance(
    deviations: Float[Tensor, "n"], fractions: Float[Tensor, "n"], clusters: Clusters
) -> Variance:
    """The variance of a mean over n items.

    Args:
        deviations: Of each item the weight times the deviation of its value.
        fractions: Of each item the weight; all sum to 1.
        clusters: The cluster of each item as any integers, (n,); or (n, 2), its image and its
            captions.

    Example:
        >>> deviations, fractions = torch.tensor([0.5, -0.5, 0.5, -0.5]) / 4, torch.full((4,), 0.25)
        >>> together = cluster_variance(deviations, fractions, torch.tensor([0, 1, 0, 1]))
        >>> apart = cluster_variance(deviations, fractions, torch.arange(4))
        >>> together.value > apart.value, together.freedom < apart.freedom
        (True, True)
    """
    ways = clusters.reshape(len(clusters), -1).unbind(dim=1)
    images = _one_way(deviations, fractions, ways[0])
    if len(ways) == 1:
        return images
    captions = _one_way(deviations, fractions, ways[1])
    # Items that share both image and caption are in both variances, and are taken away once.
    _, cells = torch.unique(clusters, dim=0, return_inverse=True)
    both = _one_way(deviations, fractions, cells)
    total = images.value + captions.value - both.value
    return Variance(
        value=max(total, images.value, captions.value),
        freedom=min(images.freedom, captions.freedom),
        clusters=min(images.clusters, captions.clusters),
    )


def mean_variance(deviations: Float[Tensor, "n"], clusters: Clusters) -> Variance:
    """The variance of a mean over n items of one weight, from the deviation of each."""
    fractions = torch.full_like(deviations, 1 / len(deviations))
    return cluster_variance(deviations * fractions, fractions, clusters)


def degrees_of_freedom(fractions: Float[Tensor, "C"]) -> float:
    r"""The degrees of freedom of the variance over C clusters, C - 1 if all have the same share.

    Satterthwaite's $(\sum_c M_{cc})^2 / \sum_{cd} M_{cd}^2$, where M is the covariance of the
    totals' deviations $a_c (y_c - \bar y)$, $a_c = s_c / \sqrt{1 - s_c}$:
    $M_{cd} = a_c a_d ([c = d] - s_c - s_d + \sum_k s_k^2)$ for clusters whose items all agree. A
    cluster with most of the items leaves few degrees of freedom.
    Source: Bell and McCaffrey 2002, section 4; Pustejovsky and Tipton 2018, equation 11.

    Example:
        >>> round(degrees_of_freedom(torch.full((10,), 0.1)), 6)
        9.0
        >>> round(degrees_of_freedom(torch.tensor([0.91] + [0.01] * 9)), 1)
        1.0
    """
    fractions = fractions.double()
    squared = fractions**2
    factor = squared / (1 - fractions)  # a_c squared
    total = squared.sum()
    variances = factor * (1 - 2 * fractions + total)  # M_cc
    # The squared M_cd of all pairs of clusters, without a loop over pairs: sums over c of
    # a_c squared times 1, s_c and s_c squared, from which each cluster with itself is taken.
    first = factor.sum()
    second = (factor * fractions).sum()
    third = (factor * squared).sum()
    pairs = total**2 * first**2 - 4 * total * first * second
    pairs = pairs + 2 * first * third + 2 * second**2
    itself = factor**2 * (total - 2 * fractions) ** 2
    products = (variances**2).sum() + pairs - itself.sum()
    return float(variances.sum() ** 2 / products)


def add_variances(one: Variance, other: Variance) -> Variance:
    """The variance of a sum of two independent means; its clusters are the first mean's.

    Half its 95 % interval is the root of the sum of both halves' squares, and the degrees of
    freedom are those that give this interval. So the interval of either mean is kept where the
    other one does not vary; Satterthwaite's degrees of freedom are too many if one has only 1 or 2.
    Source: Zou and Donner 2008 ("method of variance estimates recovery").

    Example:
        >>> total = add_variances(Variance(1.0, 2.0, 5), Variance(1.0, 1000.0, 9))
        >>> total.value, round(total.freedom, 1), total.clusters
        (2.0, 2.8, 5)
    """
    total = one.value + other.value
    # Without freedom or variance there is no interval to combine.
    if not one.freedom or not other.freedom or not total:
        fewest = min(one.freedom, other.freedom)
        return Variance(total, fewest, one.clusters)
    one_quantile = t_quantile(one.freedom)
    other_quantile = t_quantile(other.freedom)
    half_squared = one_quantile**2 * one.value
    other_half_squared = other_quantile**2 * other.value
    quantile = math.sqrt((half_squared + other_half_squared) / total)
    return Variance(total, freedom_of(quantile), one.clusters)


def finite(
    values: Float[Tensor, "n"], least: float = -math.inf, most: float = math.inf
) -> Float[Tensor, "n"]:
    """The values in double precision; `UserError` unless there are some, all finite and in range.

    Example:
        >>> finite(torch.tensor([0.5]), least=0.0, most=1.0)
        tensor([0.5000], dtype=torch.float64)
    """
    inside = (values >= least) & (values <= most) & values.isfinite()
    if not len(values) or not inside.all():
        raise UserError(
            f"expected finite values in [{least:g}, {most:g}] to average, got {len(values)} "
            "values: check the benchmark's files, or evaluate again in fp32"
        )
    return values.detach().double().cpu()


def cluster_totals(values: Float[Tensor, "n"], clusters: Int[Tensor, "n"]) -> Float[Tensor, "c"]:
    """Sums the values of each cluster, in the order of the clusters' numbers."""
    numbers, member = torch.unique(clusters, return_inverse=True)
    zeros = torch.zeros(len(numbers), dtype=values.dtype)
    return zeros.index_add(0, member, values)


def _one_way(
    deviations: Float[Tensor, "n"], fractions: Float[Tensor, "n"], clusters: Int[Tensor, "n"]
) -> Variance:
    sizes = cluster_totals(fractions, clusters)
    totals = cluster_totals(deviations, clusters)
    # A cluster of items without weight says nothing, so it is not counted.
    counted = sizes > 0
    sizes = sizes[counted]
    totals = totals[counted]
    if len(totals) < 2:
        return Variance(0.0, 0.0, len(totals))
    # Divided as in CR2: a large cluster pulls the mean towards itself, and deviates less from it.
    terms = totals**2 / (1 - sizes)
    value = float(terms.sum())
    return Variance(value, degrees_of_freedom(sizes), len(totals))
