"""How often probes are right, over runs and images.

In: predictions of several runs, and the truth. Out: numbers with n, chance and interval, confusion
matrices. Never: a model.

Predictions are (r, n, c): r runs, n images, each under c transformations.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.metrics.cluster_robust import proportion_interval
from vlmtune.metrics.cluster_variance import add_variances, cluster_variance
from vlmtune.metrics.significance import seeded_difference, variance_over_seeds
from vlmtune.results.metric_value import MetricValue

Right = Bool[Tensor, "r n c"]
"""Whether each prediction is right."""
Counted = Bool[Tensor, "n c"]
"""Which predictions count."""


def accuracy(
    right: Right,
    counted: Counted,
    chance: float,
) -> MetricValue:
    r"""The fraction of right predictions among those that count, as a mean over runs.

    The variance of its 95 % interval is that over images, each with all its transformations, plus
    $s^2 / r$, that over runs; `proportion_interval` turns it into an interval. With a single run it
    is that over images.

    Args:
        right: Whether each prediction is right.
        counted: Which predictions count; their number is n.
        chance: What guessing reaches.

    Example:
        >>> right = torch.tensor([[[True, False]] * 50, [[True, True]] * 50])
        >>> one = accuracy(right, torch.ones(50, 2, dtype=torch.bool), 0.5)
        >>> one.value, one.n
        (0.75, 100)
    """
    totals, sizes = _totals(right, counted)
    n = sizes.sum()
    value = float(totals.sum() / (len(totals) * n))
    # Images may count with different numbers of predictions: the accuracy is a ratio of sums.
    expected = value * sizes
    deviations = (totals.mean(dim=0) - expected) / n
    # Each image is a cluster: its transformations are not independent of each other.
    images = torch.arange(len(sizes))
    variance = cluster_variance(deviations, sizes / n, images)
    by_run = totals.sum(dim=1) / n
    over_runs = variance_over_seeds([by_run], [True])
    if over_runs:
        variance = add_variances(variance, over_runs)
    low, high = proportion_interval(value, variance, int(n))
    return MetricValue(value, int(n), chance, low, high, clusters=len(sizes))


def difference(
    after: Right,
    before: Right,
    counted: Counted,
) -> MetricValue:
    """The accuracy of `after` minus the accuracy of `before`, paired by run and by image.

    The interval is that of `seeded_difference`, which the report shows; runs have the same seeds,
    and of each image equally many predictions count.

    Example:
        >>> before = torch.tensor([[[True], [False]] * 30] * 2)
        >>> one = difference(torch.ones_like(before), before, torch.ones(60, 1, dtype=torch.bool))
        >>> one.value, one.low is not None and 0.3 < one.low < 0.5
        (0.5, True)
    """
    # In double precision, as the report computes the intervals of its own differences.
    new = torch.tensor(outcomes(after, counted), dtype=torch.float64)
    old = torch.tensor(outcomes(before, counted), dtype=torch.float64)
    paired = seeded_difference(new, old, paired=True, bound=1.0)
    n = int(counted.sum())
    images = new.shape[1]
    return MetricValue(paired.difference, n, None, paired.low, paired.high, clusters=images)


def _totals(right: Right, counted: Counted) -> tuple[Float[Tensor, "r m"], Float[Tensor, "m"]]:
    """Right predictions of each run on each image that counts, and how many there could be."""
    # An image that shows no counted transformation has no accuracy, and 0 / 0 is NaN.
    kept = counted.any(dim=1)
    assert bool(kept.any()), "no prediction counts"
    counted = counted[kept]
    right = right[:, kept] & counted
    totals = right.sum(dim=2).double()
    sizes = counted.sum(dim=1).double()
    return totals, sizes


def by_run(right: Right, counted: Counted) -> list[float]:
    """The accuracy of each run."""
    totals = (right & counted).sum(dim=(1, 2))
    return totals.div(counted.sum()).tolist()


def outcomes(right: Right, counted: Counted) -> list[list[float]]:
    """Of each run, the accuracy over transformations on each image that counts."""
    totals, sizes = _totals(right, counted)
    return (totals / sizes).tolist()


def confusion(predicted: Int[Tensor, "r n c"]) -> Float[Tensor, "c c"]:
    """Of the images of each class (row), the fraction predicted as each class (column).

    Example:
        >>> confusion(torch.tensor([[[0, 0], [0, 1]]]))
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    runs, images, classes = predicted.shape
    counts = []
    for column in range(classes):
        hits = predicted == column
        counts.append(hits.sum(dim=(0, 1)))
    return torch.stack(counts, dim=1) / (runs * images)
