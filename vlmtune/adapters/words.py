"""Which tokens of a text are words, and means over chosen tokens.

In: masks and tokens. Out: masks and means. Never: weights.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def word_mask(mask: Bool[Tensor, "n t"], special: tuple[int, int]) -> Bool[Tensor, "n t"]:
    """Drops the leading and trailing special tokens of each row from a right-padded mask.

    Example:
        >>> word_mask(torch.tensor([[True, True, True, False]]), (1, 1)).tolist()
        [[False, True, False, False]]
    """
    lead, trail = special
    position = torch.arange(mask.shape[1], device=mask.device)
    length = mask.sum(dim=1, keepdim=True)
    after_lead = position >= lead
    before_trail = position < length - trail
    return after_lead & before_trail


def masked_mean(tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n w"]:
    """The mean of the tokens where `mask` is True; each row needs at least one.

    Example:
        >>> masked_mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    masked = tokens * mask[:, :, None]
    total = masked.sum(dim=1)
    count = mask.sum(dim=1, keepdim=True)
    return total / count
