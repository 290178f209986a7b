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
    kept = counted.any(dim=1)
    if not bool(kept.any()):
        raise UserError("expected predictions to count, got none: add images")
    sizes = counted[kept].sum(dim=1).double()
    totals = (right[:, kept] & counted[kept]).sum(dim=2).double()
    runs, images = totals.shape
    value = float(totals.sum() / (runs * sizes.sum()))
    n = int(sizes.sum())
    if value in (0, 1):  # no resample would differ
        return MetricValue(value, n, chance, *wilson_interval(value, images))
    if images == 1:
        return MetricValue(value, n, chance)
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
    low, high = torch.cat(sampled).quantile(ENDS).clamp(0, 1).tolist()
    return MetricValue(value, n, chance, low, high)


def by_run(right: Bool[Tensor, "r n c"], counted: Bool[Tensor, "n c"]) -> list[float]:
    """The accuracy of each run."""
    return (right & counted).sum(dim=(1, 2)).div(counted.sum()).tolist()


def outcomes(right: Bool[Tensor, "r n c"], counted: Bool[Tensor, "n c"]) -> list[float]:
    """Of each image that counts, the accuracy over runs and transformations."""
    kept = counted.any(dim=1)
    totals = (right[:, kept] & counted[kept]).sum(dim=(0, 2)).double()
    return (totals / (len(right) * counted[kept].sum(dim=1))).tolist()


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
