"""Two models on the same items: the difference, and whether it could be chance.

The tests look at the items on which the models differ. Two overlapping intervals do not show that
two models are equal; the paired interval shows a difference if it leaves out zero.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_totals
from vlmtune.metrics.intervals import ENDS, resampled_rows
from vlmtune.metrics.item_groups import ItemGroups

RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """One model against another, item by item.

    Attributes:
        difference: Mean outcome minus that of the baseline; with groups, the mean over groups.
        low: Lower end of the 95 % interval of the difference, or None with a single cluster.
        high: Upper end, or None.
        won: Number of items on which the model does better than the baseline.
        lost: Number of items on which it does worse.
        n: Number of items.
        p: Two-sided p value, or None with a single cluster.
        test: The test that gives `p`: "McNemar" for a plain mean of right and wrong answers to
            items that share no image, else "bootstrap"; "seeds and items" where several seeds are
            resampled, too, "runs and items" where runs of both models are, in pairs.
    """

    difference: float
    low: float | None
    high: float | None
    won: int
    lost: int
    n: int
    p: float | None
    test: Literal["McNemar", "bootstrap", "seeds and items", "runs and items"]


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
    if won < 0 or lost < 0:
        raise UserError(f"expected counts of items, got {won} won and {lost} lost: correct them")
    if won == lost:
        return 1.0
    trials, fewer = won + lost, min(won, lost)
    if trials <= 1000:
        return 2 * sum(math.comb(trials, k) for k in range(fewer + 1)) / 2**trials
    k = torch.arange(fewer + 1, dtype=torch.float64)
    logs = math.lgamma(trials + 1) - torch.lgamma(k + 1) - torch.lgamma(trials - k + 1)
    return min(1.0, 2 * float(torch.exp(torch.logsumexp(logs, 0) - trials * math.log(2))))


def paired_bootstrap(
    differences: Float[Tensor, "n"],
    clusters: Int[Tensor, "n"],
    seed: int = 0,
    resamples: int = RESAMPLES,
    weights: Float[Tensor, "n"] | None = None,
    degree: int = 1,
) -> tuple[float, float, float]:
    r"""95 % percentile interval of a mean difference and its p value, resampling whole clusters.

    Each resample draws C of the C clusters with replacement; the statistic is the mean over all
    items of the drawn ones. The p value is $2 \min(P(\bar d^* \le 0), P(\bar d^* \ge 0))$, at
    most 1; adding one to counts and resamples keeps it above 0. The same input and seed give the
    same numbers.

    With weights the statistic is the weighted mean over the items of the drawn clusters,
    $\bar d^* = \sum^* w_i d_i / \sum^* w_i$. Groups are resampled too: held fixed, a group with a
    single item would look as if it were known exactly, and some benchmarks have many of those. If
    the difference varies between groups, this makes the interval wider than necessary.
    Source: Efron and Tibshirani 1993, sections 13.3 and 15.4; clusters as in Davison and Hinkley
    1997, section 3.8.

    Args:
        differences: The outcome of one model minus that of the other, for each item.
        clusters: The image of each item, as any integers.
        seed: Seed of the resampling.
        resamples: Number of resamples.
        weights: Weight of each item, up to a factor; None gives all the same weight.
        degree: Factor on deviations from the mean: 2 if each difference is a mean over pairs of its
            item with others (Hoeffding 1948, section 5).

    Returns:
        The interval's lower and upper end, and p.

    Example:
        >>> low, high, p = paired_bootstrap(torch.tensor([1.0, 1.0, 0.0] * 20), torch.arange(60))
        >>> low > 0.5 and high < 0.8 and p < 0.01
        True
    """
    if not bool(torch.isfinite(differences).all()):
        raise UserError("expected finite differences to resample, got others: evaluate again")
    count = len(clusters.unique())
    if count < 2:
        raise UserError(f"expected at least two clusters to resample, got {count}: add items")
    differences = differences.detach().double().cpu()
    weights = torch.ones_like(differences) if weights is None else weights.double()
    mean = (weights * differences).sum() / weights.sum()
    totals = cluster_totals(degree * weights * (differences - mean), clusters)
    sizes = cluster_totals(weights, clusters)
    means = torch.cat(
        [
            mean + totals[rows].sum(dim=1) / sizes[rows].sum(dim=1)
            for rows in resampled_rows(count, resamples, seed)
        ]
    )
    low, high = means.quantile(ENDS).tolist()
    # Sums in another order leave 1e-17 for equal models.
    below, above = (int((sign * means <= 1e-12).sum()) for sign in (1, -1))
    return low, high, min(1.0, 2 * (min(below, above) + 1) / (resamples + 1))


def paired_difference(
    outcomes: Float[Tensor, "n"],
    baseline: Float[Tensor, "n"],
    clusters: Int[Tensor, "n"] | None = None,
    groups: ItemGroups | None = None,
    degree: int = 1,
) -> PairedDifference:
    """Compares the outcomes of two models on the same n items.

    Args:
        outcomes: The outcome of each item under the model.
        baseline: The outcome of each item under the other model.
        clusters: The image of each item; None if no two items share one.
        groups: The groups, if the metric is a mean over groups of the mean within each. Items
            without a group are left out.
        degree: 2 if an outcome is a mean over pairs of its item with others.

    Example:
        >>> new, old = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
        >>> difference = paired_difference(new, old)
        >>> difference.difference, difference.won, difference.lost, difference.test
        (0.25, 2, 1, 'McNemar')
    """
    clusters = torch.arange(len(outcomes)) if clusters is None else clusters
    if groups is not None:
        counted = groups.members >= 0
        outcomes, baseline, clusters = outcomes[counted], baseline[counted], clusters[counted]
        groups = ItemGroups(groups.members[counted], groups.weights)
        groups = groups if len(groups.present_weights()) > 1 else None  # one group: a plain mean
    n = len(outcomes)
    if not n:
        raise UserError("expected items to compare, got none: evaluate again")
    differences = outcomes.double() - baseline.double()
    won, lost = int((differences > 0).sum()), int((differences < 0).sum())
    independent = len(torch.unique(clusters)) == n
    binary = all(bool(((x == 0) | (x == 1)).all()) for x in (outcomes, baseline))
    low = high = p = None
    if len(torch.unique(clusters)) > 1:
        weights = None if groups is None else groups.item_weights()
        low, high, p = paired_bootstrap(differences, clusters, weights=weights, degree=degree)
    test: Literal["McNemar", "bootstrap"] = "bootstrap"
    if binary and independent and groups is None and degree == 1:
        test, p = "McNemar", mcnemar(won, lost)
    mean = float(differences.mean()) if groups is None else groups.mean(differences)
    return PairedDifference(mean, low, high, won, lost, n, p, test)
