"""Ranks of candidates, 1 the best; a tie counts as lost unless `ties` says otherwise.

In: scores of candidates, and which are true. Out: ranks and hits. Never: a rank of NaN.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.errors import UserError


def pessimistic_ranks(scores: Float[Tensor, "n"]) -> Int[Tensor, "n"]:
    r"""Rank of each of n candidates, ties resolved against the model: $|\{y : s(y) \ge s(x)\}|$.

    A constant scorer ranks everything last.

    Example:
        >>> pessimistic_ranks(torch.tensor([0.5, 0.9, 0.5, 0.1]))
        tensor([3, 1, 3, 4])
    """
    values = comparable(scores)
    ascending = values.sort().values  # n log n, where comparing all pairs takes n squared
    return len(values) - torch.searchsorted(ascending, values, side="left")


def true_ranks(
    scores: Float[Tensor, "n m"],
    true: Bool[Tensor, "n m"],
    ties: Literal["wrong", "first"] = "wrong",
) -> Int[Tensor, "n"]:
    r"""Rank of the best true one of m candidates among the false ones; rank 1 is correct.

    With the best true score $s_t$, at t, and false candidates j: `ties="wrong"` is pessimistic,
    $1 + |\{j : s_j \ge s_t\}|$. `ties="first"` ranks equal candidates in their order, as published
    scripts with `argmax` do: $1 + |\{j : s_j > s_t\}| + |\{j < t : s_j = s_t\}|$. A constant scorer
    is then correct wherever the true candidate comes first, so use it only to repeat published
    numbers. An item without a true candidate ranks last.

    Args:
        scores: Scores of the candidates; -inf pads a row with fewer candidates.
        true: Which candidates are true.
        ties: The rule for ties.

    Example:
        >>> scores, true = torch.tensor([[0.3, 0.1], [0.3, 0.3]]), torch.eye(2) > 0
        >>> true_ranks(scores, true), true_ranks(scores, ~true, "first")
        (tensor([1, 2]), tensor([2, 1]))
    """
    values = comparable(scores)
    true_values = torch.where(true, values, -torch.inf)
    best, position = true_values.max(dim=1, keepdim=True)
    before = values > best
    level = values == best
    if ties == "wrong":
        before |= level
    else:
        candidates = torch.arange(values.shape[1], device=values.device)
        before |= level & (candidates < position)
    false_before = before & ~true
    return 1 + false_before.sum(dim=1)


def recall_at(ranks: Int[Tensor, "n"], k: int) -> Bool[Tensor, "n"]:
    """Which items have their true candidate among the first k; their mean is R@k.

    Example:
        >>> recall_at(torch.tensor([1, 3, 2]), 2)
        tensor([ True, False,  True])
    """
    return ranks <= k


def mean_ranks(scores: Float[Tensor, "n"], positives: Bool[Tensor, "n"]) -> tuple[float, float]:
    """Mean rank of the true images and of the distractors, in one ranking; NaN where there is none.

    Source: Cola, Ray et al. 2023, section 10, "Mean Rank of GT vs distractors".

    Example:
        >>> mean_ranks(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, False]))
        (1.0, 2.5)
    """
    ranks = pessimistic_ranks(scores).double()
    of_true = ranks[positives].mean()
    of_distractors = ranks[~positives].mean()
    return float(of_true), float(of_distractors)


def f1_at_positives(scores: Float[Tensor, "n"], positives: Bool[Tensor, "n"]) -> float:
    """F1 if the first P images are predicted, P being the number of true ones.

    Cola reports an F1 (section 10) but does not say which score counts as a prediction. A score
    threshold would have to be tuned per model, on the test set. This cut needs no tuning and is the
    same for cosines, logits and probabilities. An image is predicted if its pessimistic rank is at
    most P, so images tied across the cut are not predicted: `F1 = 2 hits / (predicted + P)`.
    Without ties this is R-precision; random scores reach P / n.

    Example:
        >>> f1_at_positives(torch.tensor([0.9, 0.8, 0.7, 0.1]), torch.tensor([1, 0, 1, 0]) > 0)
        0.5
    """
    count = int(positives.sum())
    predicted = pessimistic_ranks(scores) <= count
    hits = int((predicted & positives).sum())
    predictions = int(predicted.sum())
    return 2 * hits / (predictions + count)


def comparable(scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Returns the scores in double precision; raises `UserError` if one is NaN or infinite."""
    # -inf passes: it pads rows that have fewer candidates, and never wins.
    wrong = torch.isnan(scores) | (scores == torch.inf)
    if wrong.any():
        raise UserError(
            f"expected finite scores, {int(wrong.sum())} of {scores.numel()} are NaN or infinite: "
            "lower the learning rate or use fp32, then evaluate again"
        )
    return scores.double()
