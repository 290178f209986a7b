"""Two models on the same items: what changed, and whether chance alone would change as much.

The test looks at the items on which the models differ. Two intervals that overlap do not say that
there is no difference; the paired interval does not hold zero where there is one.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.grouped import Groups

RESAMPLES = 2000


@dataclass(frozen=True)
class Paired:
    """One model against another, item by item.

    Attributes:
        difference: Mean outcome minus that of the baseline; the mean over groups where there are.
        low: Lower end of the 95 % interval of the difference, or None with a single cluster.
        high: Upper end, or None.
        won: How many items the model does better than the baseline.
        lost: How many it does worse.
        n: How many items there are.
        p: Two-sided p value, or None with a single cluster.
        test: What `p` is of: "McNemar" for a plain mean where every outcome is right or wrong and
            no two items share an image, else "bootstrap".
    """

    difference: float
    low: float | None
    high: float | None
    won: int
    lost: int
    n: int
    p: float | None
    test: Literal["McNemar", "bootstrap"]


def mcnemar(won: int, lost: int) -> float:
    r"""Two-sided p value of McNemar's exact test.

    Where the models are equally good, each of the $m = b + c$ items on which they differ is won
    with probability 1/2: $p = \min(1, 2 \sum_{k=0}^{\min(b, c)} \binom{m}{k} 2^{-m})$.
    Source: McNemar 1947; exact form as in Agresti 2013, section 11.1.

    Args:
        won: b, items that only the one model has right.
        lost: c, items that only the other has right.

    Raises:
        UserError: A count is negative.

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
    chosen = math.lgamma(trials + 1) - torch.lgamma(k + 1) - torch.lgamma(trials - k + 1)
    return min(1.0, 2 * float(torch.exp(torch.logsumexp(chosen, 0) - trials * math.log(2))))


def paired_bootstrap(
    differences: Float[Tensor, "n"],
    clusters: Int[Tensor, "n"],
    seed: int = 0,
    resamples: int = RESAMPLES,
    weights: Float[Tensor, "n"] | None = None,
    degree: int = 1,
) -> tuple[float, float, float]:
    r"""95 % percentile interval of a mean difference and its p value, resampling whole clusters.

    Of C clusters C are drawn with replacement; the statistic is the mean over all items of the
    drawn ones. The p value is $2 \min(P(\bar d^* \le 0), P(\bar d^* \ge 0))$, at most 1, with one
    added to counts and resamples so that it is never 0. The same input and seed give the same
    numbers; the global random state is left alone.

    With weights the statistic is the weighted mean over the items of the drawn clusters,
    $\bar d^* = \sum^* w_i d_i / \sum^* w_i$. Groups are not held fixed: one of a single item, of
    which some benchmarks have many, would otherwise seem to be known exactly. Where the difference
    varies from group to group this errs on the safe side.
    Source: Efron and Tibshirani 1993, sections 13.3 and 15.4; clusters as in Davison and Hinkley
    1997, section 3.8.

    Args:
        differences: Of each item the outcome of one model minus that of the other.
        clusters: Number of the image of each item, any integers.
        seed: Seed of the resampling.
        resamples: How many resamples are drawn.
        weights: Weight of each item, up to a factor; None weighs all alike.
        degree: How many times a deviation of the mean counts: 2 where each difference is a mean
            over pairs of its item with others (Hoeffding 1948, section 5).

    Returns:
        The interval's lower and upper end, and p.

    Raises:
        UserError: A difference is not finite, or there are fewer than two clusters.

    Example:
        >>> low, high, p = paired_bootstrap(torch.tensor([1.0, 1.0, 0.0] * 20), torch.arange(60))
        >>> low > 0.5 and high < 0.8 and p < 0.01
        True
    """
    if not bool(torch.isfinite(differences).all()):
        raise UserError("expected finite differences to resample, got others: evaluate again")
    _, member = torch.unique(clusters, return_inverse=True)
    count = int(member.max()) + 1 if len(member) else 0
    if count < 2:
        raise UserError(f"expected at least two clusters to resample, got {count}: add items")
    differences = differences.detach().double().cpu()
    weights = torch.ones_like(differences) if weights is None else weights.double()
    mean = (weights * differences).sum() / weights.sum()
    empty = torch.zeros(count, dtype=torch.float64)
    totals = empty.index_add(0, member, degree * weights * (differences - mean))
    sizes = empty.index_add(0, member, weights)
    generator = torch.Generator().manual_seed(seed)
    # In parts, so that memory does not grow with resamples x clusters.
    part, drawn_means = max(1, 2_000_000 // count), []
    for start in range(0, resamples, part):
        rows = min(part, resamples - start)
        drawn = torch.randint(count, (rows, count), generator=generator)
        drawn_means.append(mean + totals[drawn].sum(dim=1) / sizes[drawn].sum(dim=1))
    means = torch.cat(drawn_means)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    # Sums in another order leave 1e-17 where there is no difference.
    below, above = (int((sign * means <= 1e-12).sum()) for sign in (1, -1))
    return low, high, min(1.0, 2 * (min(below, above) + 1) / (resamples + 1))


def compare(
    outcomes: Float[Tensor, "n"],
    baseline: Float[Tensor, "n"],
    clusters: Int[Tensor, "n"] | None = None,
    seed: int = 0,
    groups: Groups | None = None,
    degree: int = 1,
) -> Paired:
    """Compares what two models earn on the same n items.

    Args:
        outcomes: Of each item what the model earns.
        baseline: What the other model earns.
        clusters: Number of the image of each item; None where each has one of its own.
        seed: Seed of the bootstrap.
        groups: The groups, where the metric is a mean over groups of the mean within each; items
            that count in none are left out.
        degree: 2 where an outcome is a mean over pairs of its item with others.

    Raises:
        UserError: There are no items that count, or an outcome is not finite.

    Example:
        >>> new, old = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
        >>> found = compare(new, old)
        >>> found.difference, found.won, found.lost, found.p, found.test
        (0.25, 2, 1, 1.0, 'McNemar')
    """
    clusters = torch.arange(len(outcomes)) if clusters is None else clusters
    if groups is not None:
        kept = groups.members >= 0
        outcomes, baseline, clusters = outcomes[kept], baseline[kept], clusters[kept]
        groups = Groups(groups.members[kept], groups.weights)
        groups = groups if len(groups.present()) > 1 else None  # one group is a plain mean
    n = len(outcomes)
    if not n:
        raise UserError("expected items to compare, got none: evaluate again")
    differences = outcomes.double() - baseline.double()
    won, lost = int((differences > 0).sum()), int((differences < 0).sum())
    alone = len(torch.unique(clusters)) == n
    binary = all(bool(((x == 0) | (x == 1)).all()) for x in (outcomes, baseline))
    low = high = p = None
    if len(torch.unique(clusters)) > 1:
        weights = None if groups is None else groups.shares()
        low, high, p = paired_bootstrap(differences, clusters, seed, RESAMPLES, weights, degree)
    test: Literal["McNemar", "bootstrap"] = "bootstrap"
    if binary and alone and groups is None and degree == 1:
        test, p = "McNemar", mcnemar(won, lost)
    mean = float(differences.mean()) if groups is None else groups.mean(differences)
    return Paired(mean, low, high, won, lost, n, p, test)
