"""Which tokens of a text are words, which words are tokens, and tokens of several words.

In: masks, tokens and words. Out: masks, ids, means, and each word with those before it. Never:
trained weights of its own.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from vlmtune.backbones.base import TextTower
from vlmtune.errors import UserError


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


def ids_of_words(
    tower: TextTower, words: Sequence[str], special: tuple[int, int]
) -> dict[str, tuple[list[int], list[int]]]:
    """The ids of the tokens of each word, at the start of a text and after another word.

    Both differ where a tokenizer marks the space before a word: SigLIP 2's has "no" and "▁no".
    Words that a closed vocabulary lacks are left out.
    """
    ids = {}
    for word in words:
        try:
            tokens = tower.words([word, f"{word} {word}"])
        except UserError:
            continue
        alone, twice = word_mask(tokens.mask, special)
        at_start = tokens.word_ids[0][alone].tolist()
        both = tokens.word_ids[1][twice].tolist()
        ids[word] = (at_start, both[len(at_start) :])
    return ids


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


def with_preceding(
    tokens: Float[Tensor, "n t w"], convolution: nn.Conv1d
) -> Float[Tensor, "n t w"]:
    """Returns x + GELU(conv(x)) of tokens x; the convolution sees each and those before it."""
    (size,) = convolution.kernel_size
    padded = pad(tokens.mT, (size - 1, 0))
    return tokens + gelu(convolution(padded)).mT
