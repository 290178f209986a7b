"""Ranks with ties resolved against the model: rank 1 is best, and equal scores rank alike, last.

`rank(x) = #{y : s(y) >= s(x)}`, x itself included. A constant scorer thus ranks everything last,
and no tie-breaking of a sort can make a model look good.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.errors import UserError


def pessimistic_ranks(scores: Float[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Rank of each of n candidates among all of them.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> pessimistic_ranks(torch.tensor([0.5, 0.9, 0.5, 0.1]))
        tensor([3, 1, 3, 4])
    """
    values = _ordered(scores)
    ascending = values.sort().values
    return len(values) - torch.searchsorted(ascending, values, side="left")


def true_ranks(scores: Float[Tensor, "n m"], true: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """Rank of the true one of m candidates, for n items; it wins where the rank is 1.

    Args:
        scores: Scores of the candidates; -inf marks places that hold no candidate.
        true: Position of the true candidate in each row.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> true_ranks(torch.tensor([[0.3, 0.1], [0.3, 0.3]]), torch.tensor([0, 0]))
        tensor([1, 2])
    """
    values = _ordered(scores)
    return (values >= values.gather(1, true[:, None])).sum(dim=1)


def recall_at(ranks: Int[Tensor, "n"], k: int) -> Bool[Tensor, "n"]:
    """Which items have their true candidate among the first k (hits; their mean is R@k).

    Example:
        >>> recall_at(torch.tensor([1, 3, 2]), 2)
        tensor([ True, False,  True])
    """
    return ranks <= k


def mean_ranks(scores: Float[Tensor, "n"], positives: Bool[Tensor, "n"]) -> tuple[float, float]:
    """Mean rank of the true images and of the distractors, in one ranking of both.

    Source: Cola, Ray et al. 2023, section 10, "Mean Rank of GT vs distractors".

    Raises:
        UserError: There is no true image or no distractor, or a score is NaN.

    Example:
        >>> mean_ranks(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, False]))
        (1.0, 2.5)
    """
    if not positives.any() or positives.all():
        raise UserError("expected true images and distractors, got one kind: leave the class out")
    ranks = pessimistic_ranks(scores).double()
    return float(ranks[positives].mean()), float(ranks[~positives].mean())


def _ordered(scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    wrong = int(torch.isnan(scores).sum())
    if wrong:
        raise UserError(
            f"expected scores that can be ranked, {wrong} of {scores.numel()} are NaN: "
            "lower the learning rate or use fp32, then evaluate again"
        )
    return scores.double()
