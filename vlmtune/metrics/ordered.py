"""Ranks with ties resolved by the order of candidates, as published scripts that call argmax do."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError


def ordered_ranks(scores: Float[Tensor, "n m"], true: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    r"""Rank of the true one of m candidates where of equal ones the first comes first.

    $1 + |\{j : s_j > s_t\}| + |\{j < t : s_j = s_t\}|$; rank 1 is what `argmax` chooses. A
    constant scorer is right wherever the true candidate stands first, so the number depends on an
    order that says nothing about the model: it serves to repeat published numbers only.

    Args:
        scores: Scores of the candidates of n items.
        true: Position of the true candidate in each row.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> ordered_ranks(torch.tensor([[0.3, 0.3], [0.3, 0.3]]), torch.tensor([0, 1]))
        tensor([1, 2])
    """
    wrong = int(torch.isnan(scores).sum())
    if wrong:
        raise UserError(
            f"expected scores that can be ranked, {wrong} of {scores.numel()} are NaN: "
            "lower the learning rate or use fp32, then evaluate again"
        )
    own = scores.gather(1, true[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < true[:, None]
    return 1 + ((scores > own) | ((scores == own) & earlier)).sum(dim=1)
