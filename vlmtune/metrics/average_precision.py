"""Average precision of a ranking, and its mean over classes within a pool of images per class.

In: scores, truth and pools. Out: average precision of each class, and its chance. Never: a class
without a positive as 0 without saying so.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.metrics.ranking import comparable


def average_precision(scores: Float[Tensor, "n"], positives: Bool[Tensor, "n"]) -> float:
    r"""Area under the precision-recall steps: $\sum_k (R_k - R_{k-1}) P_k$.

    k runs over the distinct score values in descending order, and $P_k$, $R_k$ are precision and
    recall of everything that scores at least as much. Tied scores share one threshold, so their
    order does not matter, and a constant scorer gets the prevalence of the positives. No sigmoid is
    applied (torchmetrics applies one), so large logits do not collapse into ties. NaN without a
    positive.

    Args:
        scores: Scores of n images for one query.
        positives: Which of them are true.

    Example:
        >>> logits = torch.tensor([20.0, 21.0, 22.0, 23.0])
        >>> average_precision(logits, torch.tensor([False, True, False, True]))
        0.8333333333333333
    """
    total = positives.sum()
    values, order = comparable(scores).sort(descending=True)
    cumulative = positives[order].double().cumsum(0)  # true ones among the first k
    # The threshold of each run of equal scores is at its last position.
    last = torch.ones_like(values, dtype=torch.bool)
    last[:-1] = values[1:] != values[:-1]
    positions = last.nonzero().squeeze(1)
    hits = cumulative[positions]
    precision = hits / (positions + 1)
    # Each step of recall counts with the precision at its end.
    zero = hits.new_zeros(1)
    gained = torch.diff(hits, prepend=zero)
    area = (gained * precision).sum()
    # Without a positive 0 / 0 is NaN: as its class is left out, it must not look like a 0.
    return float(area / total)


def random_average_precision(positives: int, n: int) -> float:
    r"""The mean average precision of random scores without ties, for P positives among n.

    $\frac{1}{n} \left( H_n + \frac{P - 1}{n - 1} (n - H_n) \right)$, $H_n = \sum_{k \le n} 1/k$:
    rank k is positive with probability P/n, and then $1 + (k-1) \frac{P-1}{n-1}$ of the first k
    are positive on average. It is above the prevalence P/n, and far above it in a small pool.

    Example:
        >>> random_average_precision(1, 2), random_average_precision(2, 2)
        (0.75, 1.0)
        >>> round(random_average_precision(2, 5), 4)  # the prevalence is 0.4
        0.5925
    """
    if n == 1:  # the second term would be 0 / 0
        return 1.0
    ranks = torch.arange(1, n + 1, dtype=torch.float64)
    harmonic = float((1 / ranks).sum())
    others = (positives - 1) / (n - 1) * (n - harmonic)
    return (harmonic + others) / n


@dataclass(frozen=True)
class ClassPrecision:
    """Average precision of C classes, and why classes were left out.

    Attributes:
        values: AP of each class; NaN if the class was left out.
        chance: What random scores reach in each class (`random_average_precision`), or NaN.
        no_positives: Number of classes without a positive image.
        empty_pool: Number of classes with positives but without an image in their pool.
        none_in_pool: Number of classes with positives and a pool, but no positive in the pool.
    """

    values: Float[Tensor, "C"]
    chance: Float[Tensor, "C"]
    no_positives: int
    empty_pool: int
    none_in_pool: int

    @property
    def counted(self) -> Bool[Tensor, "C"]:
        """True for the classes that count."""
        return ~torch.isnan(self.values)


def class_average_precision(
    scores: Float[Tensor, "N C"],
    labels: Bool[Tensor, "N C"],
    pool: Bool[Tensor, "N C"],
    treatment: Literal["strict", "reference"] = "strict",
) -> ClassPrecision:
    """AP of each class over the images of its pool; mAP is the mean over the classes that count.

    Classes without a positive and classes with an empty pool never count (Cola's released
    evaluation). The treatments differ for a class whose positives are all outside its pool:

    - "strict" leaves it out (its AP is undefined) and reports it in `none_in_pool`;
    - "reference" gives it 0, as the released script does under torchmetrics 1.x (under 0.10 and
      0.11 the whole mean becomes NaN).

    Args:
        scores: Scores of N images for C classes.
        labels: Which class is true of which image.
        pool: Which images are ranked for which class.
        treatment: See above.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
        >>> labels = torch.tensor([[True, False], [False, False]])
        >>> class_average_precision(scores, labels, torch.ones(2, 2) > 0).values
        tensor([1., nan], dtype=torch.float64)
    """
    classes = labels.shape[1]
    values = torch.full((classes,), torch.nan, dtype=torch.float64)
    chance = values.clone()
    no_positives = 0
    empty_pool = 0
    none_in_pool = 0
    for c in range(classes):
        ranked = pool[:, c]
        positives = labels[ranked, c]
        if not labels[:, c].any():
            no_positives += 1
        elif not len(positives):
            empty_pool += 1
        elif not positives.any():
            none_in_pool += 1
            if treatment == "reference":
                values[c] = 0.0
                chance[c] = 0.0
        else:
            values[c] = average_precision(scores[ranked, c], positives)
            count = int(positives.sum())
            chance[c] = random_average_precision(count, len(positives))
    return ClassPrecision(values, chance, no_positives, empty_pool, none_in_pool)
