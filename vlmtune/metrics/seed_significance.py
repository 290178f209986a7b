"""Two recipes, each trained with several seeds and measured on the same items.

In: the outcome of each item under each seed. Out: the difference, its interval and a p value that
count seeds as well as items. Never: a seed of one recipe paired with one of the other, unless the
caller says that they belong together.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.metrics.cluster_variance import Clusters, Variance, add_variances
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import (
    ROUNDING,
    PairedDifference,
    difference_variance,
    interval_and_p,
)


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
