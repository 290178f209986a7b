"""Towers of Hugging Face dual encoders, and their tokenizer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlmtune.backbones.base import ImageTower, TextTower
from vlmtune.backbones.staging import (
    checked_length,
    masked,
    parameters_of,
    unmasked,
    with_words,
)
from vlmtune.errors import UserError
from vlmtune.types import Tokens


class HFTokenizer:
    """A Hugging Face tokenizer that cuts captions and fills them up on the right.

    Args:
        tokenizer: The library's tokenizer.
        positions: Longest caption, special tokens included.
        lower: Whether captions are put in lower case first.

    Attributes:
        special: Special tokens before and after the words.
        pad: The id that fills rows up.

    Raises:
        UserError: It has no padding token.
    """

    def __init__(self, tokenizer: Any, positions: int, lower: bool = False) -> None:
        self._tokenizer, self._positions, self._lower = tokenizer, positions, lower
        if tokenizer.pad_token_id is None:
            raise UserError("expected a tokenizer with a padding token, got none: set pad_token")
        self.pad = int(tokenizer.pad_token_id)
        added = self._encode(["a"], return_special_tokens_mask=True)["special_tokens_mask"][0]
        words = [i for i, special in enumerate(added.tolist()) if not special]
        self.special = (words[0], len(added) - words[-1] - 1)

    def __call__(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Returns ids, cut to the longest caption, and which of them are real.

        Raises:
            UserError: A caption has no tokens between its special ones.
        """
        output = self._encode(list(texts))
        mask = output["attention_mask"].bool()
        with_words(texts, mask, sum(self.special))
        return output["input_ids"], mask

    def _encode(self, texts: list[str], **options: Any) -> Any:
        return self._tokenizer(
            [text.lower() for text in texts] if self._lower else texts,
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=self._positions,
            return_attention_mask=True,
            return_tensors="pt",
            **options,
        )


class HFImageTower(ImageTower):
    """A vision transformer of the library.

    Args:
        embed: From pixels to what the first block gets.
        blocks: The blocks.
        norm: The final norm.
        head: From tokens after the norm to embeddings.
        owners: The modules that `norm` and `head` use.
        special: Leading positions that are no patches.
        dtype: Type of the weights, in which it computes.
    """

    def __init__(
        self,
        embed: Callable[[Tensor], Tensor],
        blocks: nn.ModuleList,
        norm: nn.Module,
        head: Callable[[Tensor], Tensor],
        owners: Sequence[nn.Module],
        special: int,
        dtype: torch.dtype,
    ) -> None:
        self._embed, self._blocks, self._norm, self._head = embed, blocks, norm, head
        self._owners, self._dtype = owners, dtype
        self.special = special
        self.layers, self.width = len(blocks), int(norm.weight.shape[0])  # type: ignore[arg-type]

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self._blocks)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm, pooling and projection."""
        return parameters_of(*self._owners)

    def start(self, pixels: Float[Tensor, "n 3 height width"]) -> Tokens:
        """Patches, class tokens where there are any, and positions."""
        return unmasked(self._embed(pixels.to(self._dtype)))

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        return unmasked(through(self.blocks[first:stop], state.values.to(self._dtype), None))

    def norm(self, state: Tokens) -> Tokens:
        """Applies the final norm."""
        return unmasked(self._norm(state.values.to(self._dtype)))

    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """Final norm, pooling and projection."""
        return self._head(self.norm(state).values.to(self._dtype)).float()


class HFTextTower(TextTower, ABC):
    """A text transformer of the library; subclasses say which tokens see which and what is pooled.

    Args:
        tokenizer: The model's tokenizer.
        embedding: The word embeddings.
        table: The position embeddings.
        blocks: The blocks.
        norm: The final norm.
        projection: The last layer.
        dtype: Type of the weights, in which it computes.
    """

    def __init__(
        self,
        tokenizer: HFTokenizer,
        embedding: nn.Embedding,
        table: nn.Embedding,
        blocks: nn.ModuleList,
        norm: nn.Module,
        projection: nn.Module,
        dtype: torch.dtype,
    ) -> None:
        self.tokenizer, self.embedding, self.table = tokenizer, embedding, table
        self._blocks, self._norm, self._projection = blocks, norm, projection
        self._dtype = dtype
        self.layers, self.width = len(blocks), embedding.embedding_dim
        self.positions = table.num_embeddings

    def embed(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Adds positions to word embeddings."""
        return tokens + self.table.weight[: tokens.shape[1]]

    @abstractmethod
    def attention(self, mask: Bool[Tensor, "n t"]) -> dict[str, Any]:
        """What a block is told about which tokens see which."""

    @abstractmethod
    def pool(
        self, tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]
    ) -> Float[Tensor, "n w"]:
        """The token that stands for a caption, after the final norm."""

    def fill(self, words: Tokens) -> Tokens:
        """Fills captions up where the tower needs its full length."""
        return words

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self._blocks)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm and projection."""
        return parameters_of(self._norm, self._projection)

    def words(self, texts: Sequence[str]) -> Tokens:
        """Word embeddings of captions, special tokens included, cut to the longest.

        Raises:
            UserError: A caption has no tokens between its special ones.
        """
        ids, mask = self.tokenizer(texts)
        device = self.embedding.weight.device
        ids, mask = ids.to(device), mask.to(device)
        words = masked(self.embedding(ids), mask)
        return replace(words, ids=ids)

    def start(self, words: Tokens) -> Tokens:
        """Adds positions, after filling up towers that need their full length.

        Raises:
            UserError: There are more words than positions.
        """
        words = self.fill(checked_length(words, self.positions))
        tokens, mask = words.values, words.mask
        return masked(self.embed(tokens.to(self._dtype)), mask)

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        tokens, mask = state.values, state.mask
        options = self.attention(mask)
        return masked(through(self.blocks[first:stop], tokens.to(self._dtype), **options), mask)

    def norm(self, state: Tokens) -> Tokens:
        """Applies the final norm."""
        tokens, mask = state.values, state.mask
        return masked(self._norm(tokens.to(self._dtype)), mask)

    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """Final norm, pooling and projection."""
        state = self.norm(state)
        tokens, mask = state.values, state.mask
        return self._projection(self.pool(tokens, mask).to(self._dtype)).float()


def through(
    blocks: Sequence[nn.Module], tokens: Tensor, attention_mask: Tensor | None, **options: Any
) -> Tensor:
    """Runs blocks of the library, some of which give a tuple."""
    for block in blocks:
        output = block(tokens, attention_mask, **options)
        tokens = output[0] if isinstance(output, tuple) else output
    return tokens


def first_token(projection: nn.Module, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n d"]:
    """Projects the token that stands for the whole: a tower's head, as `partial(first_token, p)`.

    A partial, unlike a lambda, still belongs to a model after the model was copied.
    """
    return projection(tokens[:, 0])


def unseen(mask: Bool[Tensor, "n t"], dtype: torch.dtype) -> Float[Tensor, "n 1 1 t"]:
    """The term that, added to attention scores, hides padding from all tokens."""
    hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return hidden.masked_fill(~mask, torch.finfo(dtype).min)[:, None, None, :]


def log_odds(logits: Float[Tensor, "P 2"]) -> Float[Tensor, "P"]:
    """From the logits of "does not match" and "matches" to the log-odds of the latter."""
    return (logits[:, 1] - logits[:, 0]).float()
