"""How often probes are right, over runs and images.

In: predictions of several runs, and the truth. Out: numbers with n, chance and interval, confusion
matrices. Never: a model.

Predictions are (r, n, c): r runs, n images, each under c transformations.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.intervals import ENDS, resampled_rows, wilson_interval
from vlmtune.metrics.seed_significance import seeded_difference
from vlmtune.metrics.value import MetricValue

RESAMPLES = 2000


def accuracy(
    right: Bool[Tensor, "r n c"],
    counted: Bool[Tensor, "n c"],
    chance: float,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> MetricValue:
    r"""The fraction of right predictions among those that count, as a mean over runs.

    The 95 % interval is that of a bootstrap which draws runs and, apart, images, each image with
    all its transformations. A mean of r sampled runs varies too little by $(r - 1) / r$, so its
    deviation from the mean of all runs is scaled by $\sqrt{r / (r - 1)}$; a single run is not
    resampled. Where all or none are right it is Wilson's, of the images. Source: Owen 2007,
    section 3; Efron 1982, section 5.7.

    Args:
        right: Whether each prediction is right.
        counted: Which predictions count.
        chance: What guessing reaches.
        seed: Of the resampling.
        resamples: Number of resamples.

    Returns:
        The accuracy; n is the number of predictions that count in a run.

    Raises:
        UserError: No prediction counts.

    Example:
        >>> right = torch.tensor([[[True, False]] * 50, [[True, True]] * 50])
        >>> one = accuracy(right, torch.ones(50, 2, dtype=torch.bool), 0.5)
        >>> one.value, one.n
        (0.75, 100)
    """
    totals, sizes = _totals(right, counted)
    value = float(totals.sum() / (len(totals) * sizes.sum()))
    n, images = int(sizes.sum()), len(sizes)
    if value in (0, 1):  # no resample would differ
        return MetricValue(value, n, chance, *wilson_interval(value, images))
    if images == 1:
        return MetricValue(value, n, chance)
    low, high = _bootstrap(totals, sizes, seed, resamples).clamp(0, 1).tolist()
    return MetricValue(value, n, chance, low, high)


def difference(
    after: Bool[Tensor, "r n c"],
    before: Bool[Tensor, "r n c"],
    counted: Bool[Tensor, "n c"],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> MetricValue:
    """The accuracy of `after` minus that of `before`, paired by run and by image.

    The interval is that of `seeded_difference` with paired runs: a run is drawn for both, and so is
    an image, of which equally many predictions count. It is the one that the report shows.

    Args:
        after: Whether each prediction is right, of runs with the seeds of `before`.
        before: The same of the embedding that it is compared with.
        counted: Which predictions count.
        seed: Of the resampling.
        resamples: Number of resamples.

    Raises:
        UserError: No prediction counts.

    Example:
        >>> before = torch.tensor([[[True], [False]] * 30] * 2)
        >>> one = difference(torch.ones_like(before), before, torch.ones(60, 1, dtype=torch.bool))
        >>> one.value, one.low is not None and 0.3 < one.low < 0.5
        (0.5, True)
    """
    new, old = (torch.tensor(outcomes(x, counted), dtype=torch.float64) for x in (after, before))
    one = seeded_difference(new, old, seed=seed, resamples=resamples, paired=True)
    return MetricValue(one.difference, int(counted.sum()), None, one.low, one.high)


def _totals(
    right: Bool[Tensor, "r n c"], counted: Bool[Tensor, "n c"]
) -> tuple[Float[Tensor, "r m"], Float[Tensor, "m"]]:
    """Right predictions of each run on each image that counts, and how many there could be."""
    kept = counted.any(dim=1)
    if not bool(kept.any()):
        raise UserError("expected predictions to count, got none: add images")
    sizes = counted[kept].sum(dim=1).double()
    return (right[:, kept] & counted[kept]).sum(dim=2).double(), sizes


def _bootstrap(
    totals: Float[Tensor, "r m"], sizes: Float[Tensor, "m"], seed: int, resamples: int
) -> Float[Tensor, "2"]:
    """The ends of the interval of the mean over runs and images."""
    runs, images = totals.shape
    generator, sampled = torch.Generator().manual_seed(seed + 1), []
    for rows in resampled_rows(images, resamples, seed):
        by_run = torch.stack([total[rows].sum(dim=1) for total in totals])
        by_run /= sizes[rows].sum(dim=1)
        centre = by_run.mean(dim=0)
        if runs > 1:
            draws = torch.randint(runs, by_run.shape, generator=generator)
            mean = by_run.gather(0, draws).mean(dim=0)
            centre = centre + math.sqrt(runs / (runs - 1)) * (mean - centre)
        sampled.append(centre)
    return torch.cat(sampled).quantile(ENDS)


def by_run(right: Bool[Tensor, "r n c"], counted: Bool[Tensor, "n c"]) -> list[float]:
    """The accuracy of each run."""
    return (right & counted).sum(dim=(1, 2)).div(counted.sum()).tolist()


def outcomes(right: Bool[Tensor, "r n c"], counted: Bool[Tensor, "n c"]) -> list[list[float]]:
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
    counts = [(predicted == column).sum(dim=(0, 1)) for column in range(classes)]
    return torch.stack(counts, dim=1) / (runs * images)
