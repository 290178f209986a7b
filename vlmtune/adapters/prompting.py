"""What prompt learners share: learned tokens among the words, and their start.

In: word embeddings and prompts. Out: word embeddings with prompts, at most as long as the tower.
Never: parameters; adapters own them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.adapters.words import word_mask
from vlmtune.backbones.base import TextTower
from vlmtune.errors import UserError
from vlmtune.types import Tokens

DEVIATION = 0.02  # of random prompts, as in CoOp and MaPLe


def word_embeddings(tower: TextTower, text: str, special: tuple[int, int]) -> Float[Tensor, "m w"]:
    """The embeddings of the tokens of `text`, without the special ones around them."""
    tokens = tower.words([text])
    real = word_mask(tokens.mask, special)
    # A copy without a graph: prompts are trained, the table of words is not.
    return tokens.values[real].detach().clone()


def check_room(tower: TextTower, prompts: int, special: tuple[int, int]) -> None:
    """Raises a `UserError` if prompts leave no room for a word."""
    room = tower.positions - sum(special) - 1
    if prompts > room:
        raise UserError(
            f"expected at most {room} prompt tokens in a text tower of {tower.positions} "
            f"positions, got {prompts}: shorten the prompt"
        )


def cut(words: Tokens, room: int, trail: int) -> Tokens:
    """Shortens texts of more than `room` tokens as tokenizers do: the `trail` last ones are kept.

    Example:
        >>> words = Tokens.full(torch.arange(4.0)[None, :, None])
        >>> cut(words, 3, 1).values.flatten()
        tensor([0., 1., 3.])
    """
    words = words.trimmed()
    if words.token_count <= room:
        return words
    length = words.mask.sum(dim=1, keepdim=True)
    kept = length.clamp_max(room)
    # Where each kept token comes from: the last `trail` ones move up to the end, as a tower that
    # pools the end token must find one.
    position = torch.arange(room, device=length.device)
    position = position.expand(len(length), -1)
    moved = position + length - kept
    is_word = position < kept - trail
    source = torch.where(is_word, position, moved)
    # Padding of short rows would point behind the last token.
    source = source.clamp_max(words.token_count - 1)
    width = words.values.shape[2]
    index = source[:, :, None].expand(-1, -1, width)
    values = words.values.gather(1, index)
    ids = words.ids
    if ids is not None:
        ids = ids.gather(1, source)
    return Tokens(values, position < kept, ids, words.lengths.clamp(max=room))


def insert(
    words: Tokens, prompts: Float[Tensor, "n m w"], tower: TextTower, special: tuple[int, int]
) -> Tokens:
    """Puts prompts between the leading special tokens and the words: [start] p_1 ... p_m word ...

    Texts too long for the tower lose their last words, as they do in its tokenizer.
    """
    lead, trail = special
    count = prompts.shape[1]
    words = cut(words, tower.positions - count, trail)
    # Prompts follow the start token, as words would.
    start = words.values[:, :lead]
    rest = words.values[:, lead:]
    prompts = prompts.to(start.dtype)
    values = torch.cat([start, prompts, rest], dim=1)
    # Rows are padded on the right, so a row of the mask is its real tokens, then its padding.
    real = words.mask.new_ones(len(words), count)
    mask = torch.cat([real, words.mask], dim=1)
    lengths = words.lengths + count
    return Tokens(values, mask, noted_lengths=lengths)
