"""Which tokens of a text are pieces of one word.

In: a vocabulary, and ids of texts. Out: the words that the tokens belong to.
Never: weights.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from torch.nn.functional import pad

_END = "</w>"
_CONTINUES = "##"
_STARTS = ("▁", "Ġ")

ByToken = Bool[Tensor, "n t"]


class WordGroups(NamedTuple):
    """The words of texts."""

    number: Int[Tensor, "n t"]
    """The word of each token, counted from 1 in each text; other tokens count as words, too."""
    is_first: ByToken
    """Which tokens are the first of a word; other tokens are, too."""
    is_last: ByToken
    """Which tokens are the last of a word."""
    is_alone: ByToken
    """Which tokens are words by themselves."""

    def any_piece(self, of_token: ByToken) -> ByToken:
        """Whether a token, or another piece of its word, has a property."""
        same_word = self.number[:, :, None] == self.number[:, None, :]
        return (same_word & of_token[:, None, :]).any(dim=2)


class WordPieces(nn.Module):
    """Groups the tokens of a text into words, by how its tokenizer marks pieces.

    CLIP's BPE marks the last piece of a word ("tur", "quoise</w>"), SentencePiece and the BPE of
    GPT-2 the first ("▁tur", "quoise"), WordPiece all but the first ("tur", "##quoise"). Without
    such marks each token is a word. Where a language writes no spaces, a run of letters is a word.

    Args:
        vocabulary: The id of each token, as the tokenizer writes it.
        size: Number of ids; an id without a token is a word by itself.
    """

    is_open: Tensor
    continues: Tensor

    def __init__(self, vocabulary: Mapping[str, int], size: int) -> None:
        super().__init__()
        is_open, continues = piece_marks(vocabulary, size)
        self.register_buffer("is_open", is_open, persistent=False)
        self.register_buffer("continues", continues, persistent=False)

    def forward(self, ids: Int[Tensor, "n t"], is_word: ByToken) -> WordGroups:
        """The words of texts; `is_word` is False for special tokens and padding."""
        # Whether a token belongs to the same word as the token before it.
        previous = ids[:, :-1]
        token = ids[:, 1:]
        joined = self.is_open[previous] | self.continues[token]
        joined = joined & is_word[:, :-1] & is_word[:, 1:]
        joins_left = pad(joined, (1, 0))
        joins_right = pad(joined, (0, 1))
        is_first = ~joins_left
        number = is_first.cumsum(dim=1)
        is_last = is_word & ~joins_right
        return WordGroups(number, is_first, is_last, is_last & is_first)


def piece_marks(
    vocabulary: Mapping[str, int], size: int
) -> tuple[Bool[Tensor, "size"], Bool[Tensor, "size"]]:
    """Which tokens are joined to the next one, and which to the one before.

    Example:
        >>> is_open, continues = piece_marks({"tur": 0, "quoise</w>": 1, "cube</w>": 2}, 3)
        >>> is_open.tolist(), continues.tolist()
        ([True, False, False], [False, False, False])
    """
    is_open = torch.zeros(size, dtype=torch.bool)
    continues = torch.zeros(size, dtype=torch.bool)
    has_ends = any(token.endswith(_END) for token in vocabulary)
    has_starts = any(token.startswith(_STARTS) for token in vocabulary)
    for token, number in vocabulary.items():
        if has_ends:
            is_open[number] = not token.endswith(_END)
        elif has_starts:
            # Punctuation has no space before it either, and is a word by itself.
            has_letters = any(map(str.isalnum, token))
            continues[number] = has_letters and not token.startswith(_STARTS)
        else:
            continues[number] = token.startswith(_CONTINUES)
    return is_open, continues
