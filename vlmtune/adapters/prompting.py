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
    """The embeddings of the tokens of `text`, without the special ones around them.

    Raises:
        UserError: The tower does not know a word, or there is none.
    """
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
    if words.mask.shape[1] <= room:
        return words
    length = words.mask.sum(dim=1, keepdim=True)
    kept = length.clamp_max(room)
    position = torch.arange(room, device=length.device).expand(len(length), -1)
    source = torch.where(position < kept - trail, position, position + length - kept)
    source = source.clamp_max(words.mask.shape[1] - 1)
    return Tokens(
        words.values.gather(1, source[:, :, None].expand(-1, -1, words.values.shape[2])),
        mask=position < kept,
        ids=None if words.ids is None else words.ids.gather(1, source),
    )


def insert(
    words: Tokens, prompts: Float[Tensor, "n m w"], tower: TextTower, special: tuple[int, int]
) -> Tokens:
    """Puts prompts between the leading special tokens and the words: [start] p_1 ... p_m word ...

    Texts too long for the tower lose their last words, as they do in its tokenizer.
    """
    count, lead = prompts.shape[1], special[0]
    words = cut(words, tower.positions - count, special[1])
    tokens = words.values
    joined = [tokens[:, :lead], prompts.to(tokens.dtype), tokens[:, lead:]]
    real = torch.ones_like(words.mask[:, :1]).expand(-1, count)
    return Tokens(torch.cat(joined, dim=1), torch.cat([real, words.mask], dim=1))
