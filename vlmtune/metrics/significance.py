"""Two models on the same items: the difference, and whether it could be chance.

In: the outcomes of two models on the same items. Out: the difference, its interval and a p value.

The tests look at the items on which the models differ. Two overlapping intervals do not show that
two models are equal; the paired interval shows a difference if it leaves out zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.metrics.cluster_variance import (
    Clusters,
    Variance,
    cluster_totals,
    cluster_variance,
    finite,
)
from vlmtune.metrics.intervals import wilson_interval
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.student import two_sided_p

ROUNDING = 1e-12  # a smaller difference is that of sums in another order


@dataclass(frozen=True)
class PairedDifference:
    """One model against another, item by item.

    Attributes:
        difference: Mean outcome minus the baseline's; with groups, the mean over groups.
        low: Lower end of the 95 % interval of the difference, or None with a single cluster.
        high: Upper end, or None.
        won: Number of items on which the model does better than the baseline.
        lost: Number of items on which it does worse.
        n: Number of items.
        p: Two-sided p value, or None with a single cluster.
        test: The test that gives `p`: "McNemar" for a plain mean of right and wrong answers to
            items that share nothing, else Student's "t"; "seeds and items" where seeds vary, too,
            "runs and items" where runs of both models do, in pairs.
    """

    difference: float
    low: float | None
    high: float | None
    won: int
    lost: int
    n: int
    p: float | None
    test: Literal["McNemar", "t", "seeds and items", "runs and items"]


def mcnemar(won: int, lost: int) -> float:
    r"""Two-sided p value of McNemar's exact test.

    If the models are equally good, each of the $m = b + c$ items on which they differ is won with
    probability 1/2: $p = \min(1, 2 \sum_{k=0}^{\min(b, c)} \binom{m}{k} 2^{-m})$.
    Only the first model has the b `won` items right, only the second the c `lost` ones.
    Source: McNemar 1947; exact form as in Agresti 2013, section 11.1.

    Example:
        >>> mcnemar(1, 5), mcnemar(3, 3)  # 2 * (1 + 6) / 64
        (0.21875, 1.0)
    """
    if won == lost:  # both tails meet, and twice the tail would exceed 1
        return 1.0
    trials = won + lost  # items on which both agree say nothing
    fewer = min(won, lost)
    if trials <= 1000:
        tail = sum(math.comb(trials, k) for k in range(fewer + 1))
        return 2 * tail / 2**trials
    # In logarithms: the binomials of more trials overflow.
    k = torch.arange(fewer + 1, dtype=torch.float64)
    log_factorials = torch.lgamma(k + 1)
    log_other_factorials = torch.lgamma(trials - k + 1)
    log_binomials = math.lgamma(trials + 1) - log_factorials - log_other_factorials
    log_tail = torch.logsumexp(log_binomials, 0) - trials * math.log(2)
    return min(1.0, 2 * float(torch.exp(log_tail)))


def difference_variance(
    differences: Float[Tensor, "n"],
    clusters: Clusters,
    weights: Float[Tensor, "n"] | None = None,
    degree: int = 1,
) -> Variance:
    r"""The variance of a mean difference over items, by `cluster_variance`.

    With weights it is that of $\sum_i w_i d_i / \sum_i w_i$. Groups vary, too: held fixed, a group
    with a single item would look as if it were known exactly, and some benchmarks have many of
    those. If the difference varies between groups, this makes the interval wider than necessary.

    Where clusters happen to agree, a few of them say little of how much others vary. The standard
    error is therefore at least half of the largest cluster's share times the largest difference.
    Simulated, intervals of 5 to 80 clusters of one size then cover 93 to 100 % (p .5 and .9,
    correlation within clusters .3 and .8); without it 87 % of those of 5 clusters.

    Args:
        differences: The outcome of one model minus the other model's, for each item.
        clusters: The image of each item as any integers; (n, 2) for its image and its captions.
        weights: Weight of each item, up to a factor; None gives all the same weight.
        degree: Factor on deviations from the mean: 2 if each difference is a mean over pairs of its
            item with others (Hoeffding 1948, section 5).

    Example:
        >>> variance = difference_variance(torch.tensor([1.0, 1.0, 0.0] * 20), torch.arange(60))
        >>> round(variance.value, 4), round(variance.freedom)
        (0.0038, 59)
    """
    differences = finite(differences)
    if weights is None:
        weights = torch.ones_like(differences)
    weights = weights.double()
    fractions = weights / weights.sum()
    mean = (fractions * differences).sum()
    deviations = degree * fractions * (differences - mean)
    variance = cluster_variance(deviations, fractions, clusters)
    # The least that clusters which happen to agree may be taken to vary, see above.
    largest = 0.0
    ways = clusters.reshape(len(clusters), -1)
    for way in ways.unbind(dim=1):
        sizes = cluster_totals(fractions, way)
        largest = max(largest, float(sizes.max()))
    extreme = float(differences.abs().max())
    least = (degree * largest * extreme / 2) ** 2
    return replace(variance, value=max(variance.value, least))


def interval_and_p(
    difference: float, variance: Variance, bound: float = math.inf
) -> tuple[float | None, float | None, float | None]:
    r"""The 95 % interval of a difference by Student's t, and its two-sided p value.

    All three are None with a single cluster. `bound` is the largest possible difference, 1 for
    fractions, at which the interval is cut. Where no item differs, there is no variance, and half
    the interval is $B z^2 / (C + z^2)$ with the bound B, C clusters and z = 1.96: Wilson's upper
    end for 0 of C (`wilson_interval`). Without a bound it then has no width.

    Example:
        >>> low, high, p = interval_and_p(0.2, Variance(0.01, 9, 10))
        >>> round(low, 3), round(high, 3), round(p, 3)
        (-0.026, 0.426, 0.077)
        >>> low, high, p = interval_and_p(0.0, Variance(0.0, 3, 4), bound=1.0)
        >>> round(low, 3), round(high, 3), p
        (-0.49, 0.49, 1.0)
    """
    half = variance.half_width
    if half is None:
        return None, None, None
    # Without variance t is 0 / 0 or infinite, so the p value is given directly.
    if not variance.value:
        p = 1.0 if abs(difference) < ROUNDING else 0.0
        if math.isfinite(bound):
            _, most = wilson_interval(0.0, variance.clusters)
            half = bound * most
    else:
        error = math.sqrt(variance.value)
        p = two_sided_p(difference / error, variance.freedom)
    low = max(-bound, difference - half)
    high = min(bound, difference + half)
    return low, high, p


def paired_difference(
    outcomes: Float[Tensor, "n"],
    baseline: Float[Tensor, "n"],
    clusters: Clusters | None = None,
    groups: ItemGroups | None = None,
    degree: int = 1,
    bound: float = math.inf,
) -> PairedDifference:
    """Compares the outcomes of two models on the same n items.

    Args:
        outcomes: The outcome of each item under the model.
        baseline: The outcome of each item under the other model.
        clusters: The image of each item, or (n, 2) its image and its captions; None if no two items
            share any.
        groups: The groups, if the metric is a mean over groups of the mean within each. Items
            without a group are left out.
        degree: 2 if an outcome is a mean over pairs of its item with others.
        bound: The largest possible difference, see `interval_and_p`.

    Example:
        >>> new, old = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
        >>> difference = paired_difference(new, old)
        >>> difference.difference, difference.won, difference.lost, difference.test
        (0.25, 2, 1, 'McNemar')
    """
    if clusters is None:
        clusters = torch.arange(len(outcomes))
    if groups is not None:
        counted = groups.members >= 0
        outcomes = outcomes[counted]
        baseline = baseline[counted]
        clusters = clusters[counted]
        groups = ItemGroups(groups.members[counted], groups.weights)
        if len(groups.present_weights()) <= 1:  # one group: a plain mean, which McNemar may test
            groups = None
    n = len(outcomes)
    differences = outcomes.double() - baseline.double()
    won = int((differences > 0).sum())
    lost = int((differences < 0).sum())
    if groups is None:
        mean = float(differences.mean())
        weights = None
    else:
        mean = groups.mean(differences)
        weights = groups.item_weights()
    variance = difference_variance(differences, clusters, weights, degree)
    low, high, p = interval_and_p(mean, variance, bound)
    test: Literal["McNemar", "t"] = "t"
    # McNemar's test counts right and wrong answers, each on its own.
    independent = variance.clusters == n
    binary = _is_binary(outcomes) and _is_binary(baseline)
    if binary and independent and groups is None and degree == 1:
        test = "McNemar"
        p = mcnemar(won, lost)
    return PairedDifference(mean, low, high, won, lost, n, p, test)


def _is_binary(values: Float[Tensor, "n"]) -> bool:
    binary = (values == 0) | (values == 1)
    return bool(binary.all())
