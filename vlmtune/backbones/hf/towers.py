"""Towers of Hugging Face dual encoders, and their tokenizer.

In: modules of a loaded model. Out: towers that run block by block.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.backbones.base import ImageTower, TextTower
from vlmtune.backbones.staging import (
    Mask,
    States,
    check_words,
    embed_words,
    parameters_of,
    too_long,
    unmasked,
)
from vlmtune.errors import UserError
from vlmtune.types import Pixels, Tokens


class HFTokenizer:
    """A Hugging Face tokenizer that cuts captions and pads them on the right."""

    def __init__(self, tokenizer: Any, positions: int, lower: bool = False) -> None:
        self._tokenizer = tokenizer
        self._positions = positions
        self._lower = lower
        encoded = self._encode(["a"], return_special_tokens_mask=True)
        # 1 where the tokenizer adds a token of its own, 0 where the word is.
        added = encoded["special_tokens_mask"][0]
        words = added.logical_not().nonzero().flatten().tolist()
        trail = len(added) - words[-1] - 1
        self.special = (words[0], trail)  # how many special tokens stand around the words
        self.pad = int(tokenizer.pad_token_id)

    def __call__(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Mask]:
        """Returns ids up to the longest caption, and their mask."""
        output = self._encode(list(texts))
        mask = output["attention_mask"].bool()
        check_words(texts, mask, sum(self.special))
        return output["input_ids"], mask

    def vocabulary(self) -> Mapping[str, int]:
        """Returns the id of each token."""
        return self._tokenizer.get_vocab()

    def check_end(self, fits: bool, wanted: str) -> None:
        """Raises a `UserError` unless captions end as the model pools them."""
        if not fits:
            ids, _ = self(["a"])
            raise UserError(
                f"expected captions that end with {wanted}, got {ids[0].tolist()} for 'a': use the "
                "model's own tokenizer and eos_token_id"
            )

    def too_long(self, texts: Sequence[str]) -> list[str]:
        """Returns the captions of more tokens than the model reads; their ends are cut off."""

        def mask(some: list[str], length: int) -> Mask:
            encoded = self._encode(some, max_length=length)
            return encoded["attention_mask"].bool()

        return too_long(texts, self._positions, mask)

    def _encode(self, texts: list[str], **options: Any) -> Any:
        if self._lower:
            texts = [text.lower() for text in texts]
        return self._tokenizer(
            texts,
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=options.pop("max_length", self._positions),
            return_attention_mask=True,
            return_tensors="pt",
            **options,
        )


@dataclass(eq=False)
class HFImageTower(ImageTower):
    """A vision transformer of the library."""

    embed: Callable[[Tensor], Tensor]  # from pixels to the input of the first block
    block_list: nn.ModuleList
    final_norm: Any
    head: nn.Module  # reads the class token after the norm, or all tokens where there is none
    dtype: torch.dtype  # of the weights, in which it computes
    special: int = 1  # leading positions that are not patches, such as a class token

    def __post_init__(self) -> None:
        self.blocks = list(self.block_list)
        self.tail = parameters_of(self.final_norm, self.head)
        self.layers = len(self.blocks)
        self.width = int(self.final_norm.weight.shape[0])

    @override
    def start(self, pixels: Pixels) -> Tokens:
        return unmasked(self.embed(pixels.to(self.dtype)))

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        blocks = self.blocks[first:stop]
        tokens = through(blocks, state.values.to(self.dtype), None)
        return unmasked(tokens)

    def norm(self, state: Tokens) -> Tokens:
        """Applies the final norm."""
        normed = self.final_norm(state.values.to(self.dtype))
        return unmasked(normed)

    @override
    def unprojected(self, state: Tokens) -> Float[Tensor, "n w"] | None:
        return self.norm(state).values[:, 0] if self.special else None

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        tokens = self.norm(state).values.to(self.dtype)
        # A class token stands for the image; SigLIP's head pools all patches.
        pooled = tokens[:, 0] if self.special else tokens
        return self.head(pooled).float()


def vision_tower(
    vision: Any,
    head: nn.Module,
    dtype: torch.dtype,
    embed: Callable[[Tensor], Tensor] | None = None,
    special: int = 1,
    kind: type[HFImageTower] = HFImageTower,
) -> HFImageTower:
    """Makes the image tower of a vision model with the names of CLIP's."""
    blocks = vision.encoder.layers
    norm = vision.post_layernorm
    return kind(embed or vision.embeddings, blocks, norm, head, dtype, special)


@dataclass(eq=False)
class HFTextTower(TextTower, ABC):
    """A text transformer of the library; subclasses define its attention mask and its pooling."""

    tokenizer: HFTokenizer
    embedding: nn.Embedding  # of words
    table: nn.Embedding  # of positions
    block_list: nn.ModuleList
    final_norm: nn.Module
    projection: nn.Module  # from the pooled token to an embedding
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self.blocks = list(self.block_list)
        self.tail = parameters_of(self.final_norm, self.projection)
        self.layers = len(self.blocks)
        self.width = self.embedding.embedding_dim
        self.positions = self.table.num_embeddings

    def embed(self, tokens: States) -> States:
        """Adds positions to word embeddings."""
        return tokens + self.table.weight[: tokens.shape[1]]

    @abstractmethod
    def attention(self, mask: Mask) -> dict[str, Any]:
        """The attention mask as options of a block."""

    @abstractmethod
    def pool(self, tokens: States, mask: Mask) -> Float[Tensor, "n w"]:
        """The token that stands for a caption, after the final norm."""

    def fill(self, words: Tokens) -> Tokens:
        """Fills captions up if the tower needs its full length."""
        return words

    @override
    def words(self, texts: Sequence[str]) -> Tokens:
        ids, mask = self.tokenizer(texts)
        return embed_words(self.embedding, ids, mask)

    @override
    def vocabulary(self) -> Mapping[str, int]:
        return self.tokenizer.vocabulary()

    @override
    def start(self, words: Tokens) -> Tokens:
        # SigLIP attends to the padding, so captions are filled up before positions are added.
        words = self.fill(words)
        tokens = self.embed(words.values.to(self.dtype))
        return words.masked(tokens)

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        # `self.blocks` may hold only the parts of a block that a caption uses (`BlipTextTower`).
        blocks = list(self.block_list)[first:stop]
        options = self.attention(state.mask)
        tokens = through(blocks, state.values.to(self.dtype), **options)
        return state.masked(tokens)

    @override
    def norm(self, state: Tokens) -> Tokens:
        normed = self.final_norm(state.values.to(self.dtype))
        return state.masked(normed)

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        state = self.norm(state)
        # The norm gives float32; the projection computes in the type of the weights.
        pooled = self.pool(state.values, state.mask)
        return self.projection(pooled.to(self.dtype)).float()


@dataclass(eq=False)
class BertTextTower(HFTextTower):
    """BERT: every token attends to all but padding, and the first token is pooled.

    Args:
        first_position: Row of the table that belongs to the first token.
    """

    embeddings: Any = None
    first_position: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # RoBERTa's first positions belong to padding.
        self.positions -= self.first_position

    @override
    def embed(self, tokens: States) -> States:
        embeddings = self.embeddings
        first = self.first_position
        types = getattr(embeddings, "token_type_embeddings", None)
        if types is not None:
            tokens = tokens + types.weight[0]
        tokens = tokens + self.table.weight[first : first + tokens.shape[1]]
        return embeddings.dropout(embeddings.LayerNorm(tokens))

    @override
    def attention(self, mask: Mask) -> dict[str, Any]:
        return {"attention_mask": hide_padding(mask, self.dtype)}

    @override
    def pool(self, tokens: States, mask: Mask) -> Float[Tensor, "n w"]:
        return tokens[:, 0]


def bert_tower(
    tokenizer: Any, model: Any, projection: nn.Module, dtype: torch.dtype, **options: Any
) -> BertTextTower:
    """Makes the text tower of a BERT model of the library."""
    # ALIGN, BLIP, FLAVA and BridgeTower all have a BERT under these names.
    embeddings = model.embeddings
    kind = options.pop("kind", BertTextTower)
    table = embeddings.position_embeddings
    first = options.get("first_position", 0)
    return kind(
        tokenizer=HFTokenizer(tokenizer, table.num_embeddings - first),
        embedding=embeddings.word_embeddings,
        table=table,
        block_list=model.encoder.layer,
        final_norm=options.pop("final_norm", nn.Identity()),
        projection=projection,
        dtype=dtype,
        embeddings=embeddings,
        **options,
    )


def through(
    blocks: Sequence[nn.Module], tokens: Tensor, attention_mask: Tensor | None, **options: Any
) -> Tensor:
    """Runs blocks of the library, some of which return a tuple."""
    for block in blocks:
        output = block(tokens, attention_mask=attention_mask, **options)
        tokens = output[0] if isinstance(output, tuple) else output
    return tokens


def hide_padding(mask: Mask, dtype: torch.dtype) -> Float[Tensor, "n 1 1 t"]:
    """The term to add to attention logits so that no token attends to padding."""
    # The smallest number, not minus infinity: a row that is all padding would become NaN.
    lowest = torch.finfo(dtype).min
    term = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    term = term.masked_fill(~mask, lowest)
    return term[:, None, None, :]


def log_odds(logits: Float[Tensor, "P 2"]) -> Float[Tensor, "P"]:
    """The log-odds of "matches" from the logits of "does not match" and "matches"."""
    return (logits[:, 1] - logits[:, 0]).float()
