"""What prompt learners share: learned tokens among the words, and what they are at first."""

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.adapters.base import trim
from vlmtune.adapters.words import word_mask
from vlmtune.backbones.base import TextTower
from vlmtune.errors import UserError
from vlmtune.types import Features

DEVIATION = 0.02


def word_embeddings(tower: TextTower, text: str, special: tuple[int, int]) -> Float[Tensor, "m w"]:
    """The embeddings of the tokens of `text`, without the special ones around them.

    Raises:
        UserError: The tower does not know a word, or there is none.
    """
    words = tower.words([text])
    assert words.tokens is not None
    assert words.mask is not None
    return words.tokens[word_mask(words.mask, special)].detach().clone()


def check_room(tower: TextTower, prompts: int, special: tuple[int, int]) -> None:
    """Raises a `UserError` where prompts leave no place for a word."""
    room = tower.positions - sum(special) - 1
    if prompts > room:
        raise UserError(
            f"expected at most {room} prompt tokens in a text tower of {tower.positions} "
            f"positions, got {prompts}: shorten the prompt"
        )


def cut(words: Features, room: int, trail: int) -> Features:
    """Shortens texts of more than `room` tokens as tokenizers do: the `trail` last ones are kept.

    Example:
        >>> words = Features(tokens=torch.arange(4.0)[None, :, None], mask=torch.ones(1, 4).bool())
        >>> cut(words, 3, 1).tokens.flatten()
        tensor([0., 1., 3.])
    """
    words = trim(words)
    assert words.tokens is not None
    assert words.mask is not None
    if words.mask.shape[1] <= room:
        return words
    length = words.mask.sum(dim=1, keepdim=True)
    kept = length.clamp_max(room)
    place = torch.arange(room, device=length.device).expand(len(length), -1)
    source = torch.where(place < kept - trail, place, place + length - kept)
    source = source.clamp_max(words.mask.shape[1] - 1)
    return Features(
        tokens=words.tokens.gather(1, source[:, :, None].expand(-1, -1, words.tokens.shape[2])),
        mask=place < kept,
        ids=None if words.ids is None else words.ids.gather(1, source),
    )


def insert(
    words: Features,
    prompts: Float[Tensor, "n m w"],
    tower: TextTower,
    special: tuple[int, int],
) -> Features:
    """Puts prompts between the leading special tokens and the words: [start] p_1 ... p_m word ...

    Texts too long for the tower lose their last words, as they do in its tokenizer.
    """
    count, lead = prompts.shape[1], special[0]
    words = cut(words, tower.positions - count, special[1])
    assert words.tokens is not None
    assert words.mask is not None
    tokens = words.tokens
    joined = [tokens[:, :lead], prompts.to(tokens.dtype), tokens[:, lead:]]
    real = torch.ones_like(words.mask[:, :1]).expand(-1, count)
    return Features(tokens=torch.cat(joined, dim=1), mask=torch.cat([real, words.mask], dim=1))
