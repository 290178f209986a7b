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

DEVIATION = 0.02


def word_embeddings(tower: TextTower, text: str, special: tuple[int, int]) -> Float[Tensor, "m w"]:
    """The embeddings of the tokens of `text`, without the special ones around them."""
    words = tower.words([text])
    return words.values[word_mask(words.mask, special)].detach().clone()


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
    # Where each kept token comes from: the last `trail` ones move up to the end.
    position = torch.arange(room, device=length.device).expand(len(length), -1)
    moved = position + length - kept
    source = torch.where(position < kept - trail, position, moved)
    source = source.clamp_max(words.token_count - 1)
    index = source[:, :, None].expand(-1, -1, words.values.shape[2])
    ids = words.ids
    if ids is not None:
        ids = ids.gather(1, source)
    return Tokens(words.values.gather(1, index), position < kept, ids)


def insert(
    words: Tokens, prompts: Float[Tensor, "n m w"], tower: TextTower, special: tuple[int, int]
) -> Tokens:
    """Puts prompts between the leading special tokens and the words: [start] p_1 ... p_m word ...

    Texts too long for the tower lose their last words, as they do in its tokenizer.
    """
    lead, trail = special
    count = prompts.shape[1]
    words = cut(words, tower.positions - count, trail)
    tokens = words.values
    prompts = prompts.to(tokens.dtype)
    # Prompts follow the start token, as words would.
    values = torch.cat([tokens[:, :lead], prompts, tokens[:, lead:]], dim=1)
    real = torch.ones_like(words.mask[:, :1]).expand(-1, count)
    return Tokens(values, torch.cat([real, words.mask], dim=1))
