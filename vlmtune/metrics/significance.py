"""Two models on the same items: the difference, and whether it could be chance.

In: the outcome of each item under each seed of two models. Out: the difference, its interval and a
p value. Never: a seed of one recipe paired with one of the other, unless the caller says that they
belong together.

The tests look at the items on which the models differ. Two overlapping intervals do not show that
two models are equal; the paired interval shows a difference if it leaves out zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from scipy.special import bdtr
from torch import Tensor

from vlmtune.metrics.cluster_variance import (
    Clusters,
    Variance,
    add_variances,
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
        difference: Model's mean outcome minus the baseline's; with groups, the mean over groups.
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
        >>> round(mcnemar(1, 5), 5), mcnemar(3, 3)  # 2 * (1 + 6) / 64
        (0.21875, 1.0)
    """
    if won == lost:  # both tails meet, and twice the tail would exceed 1
        return 1.0
    tail = bdtr(min(won, lost), won + lost, 0.5)  # items on which both agree say nothing
    return min(1.0, 2 * float(tail))


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
    one_group = groups is not None and len(groups.present_weights()) <= 1
    if groups is not None and one_group:  # a plain mean, which McNemar may test
        counted = groups.members >= 0
        outcomes = outcomes[counted]
        baseline = baseline[counted]
        clusters = None if clusters is None else clusters[counted]
        groups = None
    one, other = outcomes[None], baseline[None]  # one seed each
    tested = seeded_difference(one, other, clusters, groups, degree, bound=bound)
    # McNemar's test counts right and wrong answers, each on its own.
    binary = _is_binary(outcomes) and _is_binary(baseline)
    if binary and _are_alone(clusters) and groups is None and degree == 1:
        return replace(tested, p=mcnemar(tested.won, tested.lost), test="McNemar")
    return replace(tested, test="t")


def seeded_difference(
    outcomes: Float[Tensor, "S n"],
    baseline: Float[Tensor, "R n"],
    clusters: Clusters | None = None,
    groups: ItemGroups | None = None,
    degree: int = 1,
    paired: bool = False,
    varies: Sequence[bool] = (True, True),
    bound: float = math.inf,
) -> PairedDifference:
    r"""Compares a recipe of S seeds with one of R seeds, over seeds and items.

    The statistic is $\bar d = \frac{1}{S} \sum_s \bar x_s - \frac{1}{R} \sum_r \bar y_r$, each mean
    over items weighted if the metric is a mean over groups. Its variance is that over items, of the
    mean over seeds (`difference_variance`), plus that over seeds, $s^2 (1 / S + 1 / R)$. The
    variance $s^2$ of $\bar x_s$ and $\bar y_r$ is pooled, with S + R - 2 degrees of freedom: both
    recipes are taken to vary alike. So one seed compares with several; if neither recipe has a
    second one, the test is that of the items alone. The noise of single answers is in both
    variances, which makes the sum too large rather than too small.

    Simulated, 0 to 5 % of true nulls are rejected at 5 %, of 2 to 5 seeds against 1 to 5.

    Paired rows belong together, as two probes of one seed do, each on another model's embeddings:
    the variance over seeds is that of $\bar x_s - \bar y_s$. Where all outcomes agree there is no
    interval.

    Source: both variances, Owen 2007 ("The pigeonhole bootstrap"), section 3; the pooled variance,
    Student 1908.

    Args:
        outcomes: The outcome of each item under each seed of the recipe.
        baseline: The same of the other recipe.
        clusters: The image of each item, or (n, 2) its image and its captions; None if no two items
            share any.
        groups: The groups, if the metric is a mean over groups. Items without one are left out.
        degree: 2 if an outcome is a mean over pairs of its item with others.
        paired: Whether row s of the one belongs to row s of the other.
        varies: Whether another seed would change each recipe; False for a model without training.
        bound: The largest possible difference, see `interval_and_p`.

    Returns:
        The difference; an item is won if its mean over seeds is higher.

    Raises:
        UserError: There are no items, or an outcome is not finite.

    Example:
        >>> good, bad = torch.ones(3, 50), torch.zeros(2, 50)
        >>> difference = seeded_difference(good, bad)
        >>> difference.difference, difference.won, difference.test
        (1.0, 50, 'seeds and items')
        >>> lucky = torch.stack([torch.ones(50), torch.zeros(50)])  # one seed learned, one did not
        >>> seeded_difference(lucky, bad).p > 0.05
        True
    """
    recipe = outcomes.double()
    other = baseline.double()
    if clusters is None:
        clusters = torch.arange(recipe.shape[1])
    weights = torch.ones(len(clusters), dtype=torch.float64)
    if groups is not None:
        weights = groups.item_weights()
        counted = weights > 0
        recipe = recipe[:, counted]
        other = other[:, counted]
        clusters = clusters[counted]
        weights = weights[counted]
    n = len(clusters)

    # Item by item, so that what makes an item hard for both recipes does not widen the interval.
    ahead = recipe.mean(dim=0) - other.mean(dim=0)
    fractions = weights / weights.sum()
    difference = float((ahead * fractions).sum())
    won = int((ahead > ROUNDING).sum())
    lost = int((ahead < -ROUNDING).sum())
    test = "runs and items" if paired else "seeds and items"
    variance = difference_variance(ahead, clusters, weights, degree)
    if paired and recipe.equal(other):
        return PairedDifference(0.0, None, None, 0, 0, n, 1.0, test)

    recipe_means = (recipe * fractions).sum(dim=1)
    other_means = (other * fractions).sum(dim=1)
    if paired:
        over_seeds = variance_over_seeds([recipe_means - other_means], (True,))
    else:
        over_seeds = variance_over_seeds([recipe_means, other_means], varies)
    if over_seeds is not None:  # with one seed on each side, the items alone vary
        variance = add_variances(variance, over_seeds)
    low, high, p = interval_and_p(difference, variance, bound)
    return PairedDifference(difference, low, high, won, lost, n, p, test)


def variance_over_seeds(
    means: Sequence[Float[Tensor, "_"]], varies: Sequence[bool]
) -> Variance | None:
    """The variance over seeds of a sum or difference of recipes; None if none has a second seed.

    Example:
        >>> recipe, zero_shot = torch.tensor([0.25, 0.75]), torch.tensor([0.5])
        >>> variance_over_seeds([recipe, zero_shot], [True, False]).value
        0.0625
    """
    freedom = sum(len(seeds) - 1 for seeds in means)
    if not freedom:
        return None
    squared = 0.0
    inverse_counts = 0.0
    for seeds, changes in zip(means, varies, strict=True):
        deviations = seeds - seeds.mean()
        squared += float((deviations**2).sum())
        if changes or len(seeds) > 1:
            inverse_counts += 1 / len(seeds)
    pooled = squared / freedom  # both recipes are taken to vary alike
    seeds = sum(map(len, means))
    return Variance(pooled * inverse_counts, freedom, seeds)


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


def _is_binary(values: Float[Tensor, "n"]) -> bool:
    binary = (values == 0) | (values == 1)
    return bool(binary.all())


def _are_alone(clusters: Clusters | None) -> bool:
    """Whether no two items share anything."""
    if clusters is None:
        return True
    ways = clusters.reshape(len(clusters), -1).unbind(dim=1)
    return all(len(way.unique()) == len(way) for way in ways)
