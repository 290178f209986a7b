"""One true candidate among several: rank and credit, under a stated rule for ties.

Column 0 of the scores is the true candidate; -inf marks places that hold no candidate.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.errors import UserError

# What becomes of a true candidate that shares the best score: it loses; it wins, as with an argmax
# over candidates of which it is the first; or one of the best is drawn.
Ties = Literal["wrong", "right", "random"]


def choice_ranks(scores: Float[Tensor, "n m"], ties: Ties = "wrong") -> Float[Tensor, "n"]:
    r"""Rank of the true candidate of n items, 1 being best.

    $1 + |\{j : s_j > s_0\}| + t$ where t counts the others that score as it does: all of them
    (`ties="wrong"`), none ("right"), or half of them, the expectation of a draw ("random").

    Raises:
        UserError: A score is NaN, or the score of a true candidate is not finite.

    Example:
        >>> scores = torch.tensor([[0.5, 0.1, 0.9], [0.5, 0.5, 0.1]])
        >>> choice_ranks(scores), choice_ranks(scores, "right")
        (tensor([2., 2.], dtype=torch.float64), tensor([2., 1.], dtype=torch.float64))
    """
    above, level = _compared(scores)
    share = {"wrong": 1.0, "right": 0.0, "random": 0.5}[ties]
    return 1 + above.double() + share * level.double()


def choice_credit(scores: Float[Tensor, "n m"], ties: Ties = "wrong") -> Float[Tensor, "n"]:
    """What choosing the best candidate earns: 1 for the true one, 0 for another.

    Of t others that tie with a true candidate on top, "wrong" gives 0, "right" 1, and "random"
    1 / (1 + t), the expectation of a draw. The mean is the accuracy; random scores reach the mean
    of 1 / candidates.

    Raises:
        UserError: A score is NaN, or the score of a true candidate is not finite.

    Example:
        >>> scores = torch.tensor([[0.5, 0.1], [0.5, 0.5], [0.1, 0.5]])
        >>> choice_credit(scores).tolist(), choice_credit(scores, "random").tolist()
        ([1.0, 0.0, 0.0], [1.0, 0.5, 0.0])
    """
    above, level = _compared(scores)
    tied = level.double()
    earned = {
        "wrong": (level == 0).double(),
        "right": torch.ones_like(tied),
        "random": 1 / (1 + tied),
    }
    return (above == 0) * earned[ties]


def recall_chance(sizes: Int[Tensor, "n"], k: int) -> float:
    """Share of n items whose true candidate random scores put among the first k.

    Args:
        sizes: Number of candidates of each item.
        k: How many candidates are looked at; 1 gives the chance of the accuracy.

    Example:
        >>> recall_chance(torch.tensor([2, 6]), 3)
        0.75
    """
    return float((k / sizes.double()).clamp(max=1).mean())


def _compared(scores: Float[Tensor, "n m"]) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """How many of the others score higher than the true candidate, and how many as it does."""
    wrong: Bool[Tensor, "n"] = torch.isnan(scores).any(dim=1) | ~torch.isfinite(scores[:, 0])
    if wrong.any():
        raise UserError(
            f"expected scores that can be compared, those of {int(wrong.sum())} of {len(scores)} "
            "items are NaN or infinite: lower the learning rate or use fp32, then evaluate again"
        )
    true, others = scores[:, :1], scores[:, 1:]
    return (others > true).sum(dim=1), (others == true).sum(dim=1)
