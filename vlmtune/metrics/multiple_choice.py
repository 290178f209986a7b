"""One true candidate among several: its rank and credit; a tie is lost, won or half (`ties`).

In: scores of the candidates of each item. Out: ranks, credit and chance. Never: a rank of NaN.

Column 0 of the scores is the true candidate; -inf pads a row with fewer candidates. Two true texts
and their false ones are also compared among themselves, by their embeddings.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.metrics.ranking import comparable

# A true candidate that ties for the best score is wrong; or right, as with an argmax over
# candidates that begin with it; or right as often as a random draw among the best is.
Ties = Literal["wrong", "right", "random"]


def choice_ranks(scores: Float[Tensor, "n m"], ties: Ties = "wrong") -> Float[Tensor, "n"]:
    r"""Rank of the true candidate of n items, 1 being best.

    $1 + |\{j : s_j > s_0\}| + t$ where t counts the tied candidates: all of them
    (`ties="wrong"`), none ("right"), or half of them, the expectation of a draw ("random").

    Example:
        >>> scores = torch.tensor([[0.5, 0.1, 0.9], [0.5, 0.5, 0.1]])
        >>> choice_ranks(scores), choice_ranks(scores, "right")
        (tensor([2., 2.], dtype=torch.float64), tensor([2., 1.], dtype=torch.float64))
    """
    above, level = _compared(scores)
    counted = {"wrong": 1.0, "right": 0.0, "random": 0.5}[ties]
    tied = counted * level.double()
    return 1 + above.double() + tied


def choice_credit(scores: Float[Tensor, "n m"], ties: Ties = "wrong") -> Float[Tensor, "n"]:
    """Credit for choosing the best candidate: 1 if it is the true one, else 0; `ties` for a tie.

    If t others tie with the true candidate for the best score, "wrong" gives 0, "right" 1, and
    "random" 1 / (1 + t), the expectation of a draw. The mean is the accuracy; random scores reach
    the mean of 1 / candidates.

    Example:
        >>> scores = torch.tensor([[0.5, 0.1], [0.5, 0.5], [0.1, 0.5]])
        >>> choice_credit(scores).tolist(), choice_credit(scores, "random").tolist()
        ([1.0, 0.0, 0.0], [1.0, 0.5, 0.0])
    """
    above, level = _compared(scores)
    tied = level.double()
    credit = {
        "wrong": (level == 0).double(),
        "right": torch.ones_like(tied),
        "random": 1 / (1 + tied),
    }
    return (above == 0) * credit[ties]


def recall_chance(sizes: Int[Tensor, "n"], k: int) -> float:
    """Fraction of n items whose true candidate random scores put among the first k.

    Example:
        >>> recall_chance(torch.tensor([2, 6]), 3)
        0.75
    """
    chances = k / sizes.double()
    return float(chances.clamp(max=1).mean())


def text_to_text_correct(
    texts: Float[Tensor, "n m d"], false: Bool[Tensor, "n m"], anchors: int
) -> Bool[Tensor, "n"]:
    r"""Whether the first two texts of n items, both true, are closest to each other.

    For each of the first `anchors` texts, the cosine of the two must exceed its cosine with every
    false text: $\cos(t_0, t_1) > \cos(t_a, t_f)$. Random cosines do so for a fraction of
    $1 / (1 + \text{anchors} \cdot f)$ of items with f false texts. A tie is wrong. Embeddings have
    length 1, and the first two texts of an item are true. With 1 anchor the first text alone is
    compared with the false ones, with 2 both are.

    Example:
        >>> texts = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]])
        >>> false = torch.tensor([[False, False, True]])
        >>> [bool(text_to_text_correct(texts, false, anchors)) for anchors in (1, 2)]
        [True, False]
    """
    # Sums of products, not a matrix product: equal texts must get equal cosines.
    anchor_texts = texts[:, :anchors, None]
    products = anchor_texts * texts[:, None]
    cosines = products.sum(dim=3)
    of_false = torch.where(false[:, None], cosines, -torch.inf)
    best_false = of_false.amax(dim=(1, 2))
    # The anchors begin with the first true text, whose cosine with the second is in question.
    of_true = cosines[:, 0, 1]
    return of_true > best_false


def _compared(scores: Float[Tensor, "n m"]) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
    """How many candidates score higher than the true one, and how many tie with it."""
    values = comparable(scores)
    true = values[:, :1]
    others = values[:, 1:]
    above = (others > true).sum(dim=1)
    level = (others == true).sum(dim=1)
    return above, level
