"""Two recipes, each trained with several seeds and measured on the same items.

In: the outcome of each item under each seed. Out: the difference, its interval and a p value that
count seeds as well as items. Never: a seed of one recipe paired with one of the other, unless the
caller says that they belong together.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_totals
from vlmtune.metrics.intervals import ENDS, resampled_rows
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import RESAMPLES, PairedDifference


def seeded_difference(
    outcomes: Float[Tensor, "S n"],
    baseline: Float[Tensor, "R n"],
    clusters: Int[Tensor, "n"] | None = None,
    groups: ItemGroups | None = None,
    degree: int = 1,
    seed: int = 0,
    resamples: int = RESAMPLES,
    paired: bool = False,
) -> PairedDifference:
    r"""Compares a recipe of S seeds with one of R seeds by a bootstrap over seeds and items.

    The statistic is $\bar d = \frac{1}{S} \sum_s \bar x_s - \frac{1}{R} \sum_r \bar y_r$, each mean
    over items weighted if the metric is a mean over groups. A resample draws clusters of items, the
    same for all models, and, apart, S of the S seeds and R of the R seeds, all with replacement.
    A mean of S sampled seeds varies too little by $(S - 1) / S$, so its deviation from the mean of
    all seeds is scaled by $\sqrt{S / (S - 1)}$. A single seed is not resampled: its recipe counts
    as if it had no other. Interval and p are those of `paired_bootstrap`.

    Paired rows belong together, as two probes of one seed do, each on another model's embeddings: a
    resample draws rows of $x_s - y_s$. Where all of these are 0, there is no interval.

    Source: two-way resampling, Owen 2007 ("The pigeonhole bootstrap"), section 3; the scale, Efron
    1982, section 5.7.

    Args:
        outcomes: The outcome of each item under each seed of the recipe.
        baseline: The same of the other recipe.
        clusters: The image of each item; None if no two items share one.
        groups: The groups, if the metric is a mean over groups. Items without one are left out.
        degree: 2 if an outcome is a mean over pairs of its item with others.
        seed: Seed of the resampling.
        resamples: Number of resamples.
        paired: Whether row s of the one belongs to row s of the other.

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
    both = [outcomes.double(), baseline.double()]
    clusters = torch.arange(both[0].shape[1]) if clusters is None else clusters
    weights = torch.ones(len(clusters), dtype=torch.float64)
    if groups is not None:
        weights = groups.item_weights()
        counted = weights > 0
        both, clusters = [x[:, counted] for x in both], clusters[counted]
        weights = weights[counted]
    if not len(clusters) or not all(bool(x.isfinite().all()) for x in both):
        raise UserError("expected items with finite outcomes to compare: evaluate again")
    ahead = both[0].mean(dim=0) - both[1].mean(dim=0)
    difference = float((ahead * weights).sum() / weights.sum())
    won, lost = int((ahead > 1e-12).sum()), int((ahead < -1e-12).sum())
    rows_of = [both[0] - both[1]] if paired else both
    test = "runs and items" if paired else "seeds and items"
    if paired and not bool(rows_of[0].any()):
        return PairedDifference(0.0, None, None, 0, 0, len(clusters), 1.0, test)
    means = [(x * weights).sum(dim=1) / weights.sum() for x in rows_of]
    count = len(clusters.unique())
    low = high = p = None
    if count > 1:
        deviations = [
            (x - m[:, None]) * weights * degree for x, m in zip(rows_of, means, strict=True)
        ]
        totals = [torch.stack([cluster_totals(row, clusters) for row in x]) for x in deviations]
        sizes, generator = (
            cluster_totals(weights, clusters),
            torch.Generator().manual_seed(seed + 1),
        )
        sampled_by = [
            [_resampled(t, m, sizes, rows, generator) for t, m in zip(totals, means, strict=True)]
            for rows in resampled_rows(count, resamples, seed)
        ]
        sampled = torch.cat([x[0] if paired else x[0] - x[1] for x in sampled_by])
        low, high = sampled.quantile(ENDS).tolist()
        below, above = (int((sign * sampled <= 1e-12).sum()) for sign in (1, -1))
        p = min(1.0, 2 * (min(below, above) + 1) / (resamples + 1))
    return PairedDifference(difference, low, high, won, lost, len(clusters), p, test)


def _resampled(
    totals: Float[Tensor, "S C"],
    means: Float[Tensor, "S"],
    sizes: Float[Tensor, "C"],
    rows: Int[Tensor, "r C"],
    generator: torch.Generator,
) -> Float[Tensor, "r"]:
    """The mean over sampled seeds of the mean over sampled clusters, for each of r resamples."""
    size = sizes[rows].sum(dim=1)
    by_seed = torch.stack(
        [m + t[rows].sum(dim=1) / size for t, m in zip(totals, means, strict=True)]
    )
    seeds, centre = len(means), by_seed.mean(dim=0)
    if seeds == 1:
        return centre
    chosen = torch.randint(seeds, by_seed.shape, generator=generator)
    mean = by_seed.gather(0, chosen).mean(dim=0)
    return centre + math.sqrt(seeds / (seeds - 1)) * (mean - centre)
