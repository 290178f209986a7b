"""The text side of an open_clip model: tokenizer and tower, block by block where that is exact."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from open_clip.hf_model import HFTextEncoder
from open_clip.transformer import text_global_pool
from torch import Tensor, nn

from vlmtune.backbones.base import TextTower
from vlmtune.backbones.open_clip_towers import first as first_output
from vlmtune.backbones.staging import (
    checked_length,
    last_real,
    masked,
    no_such_layer,
    padded,
    parameters_of,
    state_after,
    with_words,
)
from vlmtune.types import FeatureSpec, Tokens


class Tokenizer:
    """Any open_clip tokenizer, with the length of each caption.

    Args:
        encode: A callable from captions to padded ids.

    Attributes:
        pad: The id that fills rows up.
        end: The id of the end token.
    """

    def __init__(self, encode: Any) -> None:
        self.encode = encode
        inner = getattr(encode, "tokenizer", None)
        if inner is None:
            self.pad, self.end = 0, int(encode.eot_token_id)
            self.special = frozenset({int(encode.sot_token_id), self.end})
        else:
            end = inner.eos_token_id if inner.eos_token_id is not None else inner.sep_token_id
            self.pad, self.end = inner.pad_token_id, end
            self.special = frozenset(inner.all_special_ids)

    def __call__(self, texts: list[str]) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Returns padded ids and True up to and including the end token."""
        ids = self.encode(texts)
        ends = ids == self.end
        # A tokenizer may strip its end token; the padding then tells the length.
        lengths = torch.where(
            ends.any(dim=1), ends.int().argmax(dim=1) + 1, (ids != self.pad).sum(dim=1)
        )
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]

    def leading_and_trailing(self, word: str) -> tuple[int, int]:
        """How many special tokens stand before and after the words."""
        ids, mask = self([word])
        special = [int(i) in self.special for i in ids[0][mask[0]]]
        words = [i for i, yes in enumerate(special) if not yes]
        return words[0], len(special) - words[-1] - 1

    def checked(
        self, texts: Sequence[str], special: int
    ) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Returns ids and mask of captions that all have words.

        Raises:
            UserError: A caption has no tokens between its `special` ones.
        """
        ids, mask = self(list(texts))
        with_words(texts, mask, special)
        return ids, mask


class NativeTextTower(TextTower):
    """open_clip's own text transformer.

    Where no token sees a later one and the end token is pooled, padding is cut: states hold the
    caption only. Other towers (SigLIP: every token sees all, the last position is pooled) need
    their full length; `start` fills it with the padding token's embedding, and all of it is real.

    Args:
        tower: The module that holds the text transformer.
        tokenizer: The model's tokenizer.
        special: Special tokens of a caption.
        dtype: Type of the large weights, in which it computes.
    """

    def __init__(self, tower: Any, tokenizer: Tokenizer, special: int, dtype: torch.dtype) -> None:
        self.tower = tower
        self._tokenizer, self._special, self._dtype = tokenizer, special, dtype
        self.trims = pool_type(tower) != "last" and tower.attn_mask is not None
        self.layers = len(self.blocks)
        self.width = int(tower.transformer.width)
        self.positions = int(tower.positional_embedding.shape[0])
        self.embedding: nn.Embedding = tower.token_embedding

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self.tower.transformer.resblocks)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm and projection."""
        return parameters_of(self.tower.ln_final, self.tower.text_projection)

    def words(self, texts: Sequence[str]) -> Tokens:
        """Word embeddings of captions, start and end tokens included, cut to the longest.

        Raises:
            UserError: A caption has no tokens between its special ones.
        """
        ids, mask = self._tokenizer.checked(texts, self._special)
        longest = int(mask.sum(dim=1).max()) if len(mask) else 0
        ids = ids[:, :longest].to(self.embedding.weight.device)
        mask = mask[:, :longest].to(ids.device)
        words = masked(self.embedding(ids), mask)
        return replace(words, ids=ids)

    def start(self, words: Tokens) -> Tokens:
        """Adds positions, after filling up towers that need their full length.

        Raises:
            UserError: There are more words than positions.
        """
        checked_length(words, self.positions)
        if not self.trims:
            ids = torch.tensor(self._tokenizer.pad, device=words.values.device)
            words = padded(words, self.embedding(ids), self.positions)
        tokens, mask = words.values, words.mask
        positions = self.tower.positional_embedding[: tokens.shape[1]]
        return masked(tokens.to(self._dtype) + positions.to(self._dtype), mask)

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`, under the causal mask where the tower has one."""
        tokens, mask = state.values, state.mask
        tokens, length = tokens.to(self._dtype), tokens.shape[1]
        causal = self.tower.attn_mask
        causal = None if causal is None else causal[:length, :length]
        for block in self.blocks[first:stop]:
            tokens = block(tokens, attn_mask=causal)
        return masked(tokens, mask)

    def norm(self, state: Tokens) -> Tokens:
        """Applies the final norm."""
        tokens, mask = state.values, state.mask
        return masked(self.tower.ln_final(tokens.to(self._dtype)), mask)

    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        """Final norm, the last real position (or the first, if pooled so), and projection."""
        state = self.norm(state)
        tokens, mask = state.values, state.mask
        pooled = tokens[:, 0] if pool_type(self.tower) == "first" else last_real(tokens, mask)
        projection, pooled = self.tower.text_projection, pooled.to(self._dtype)
        if projection is None:
            return pooled.float()
        linear = isinstance(projection, nn.Module)
        return (projection(pooled) if linear else pooled @ projection).float()


class TextSide:
    """What can be read of the captions of any open_clip model.

    A plain object and not a module, so that the model's weights keep one name each.

    Args:
        model: The open_clip model.
        tokenizer: Its tokenizer.
        dtype: Type of its large weights.

    Attributes:
        special: Special tokens before and after the words.
        tower: The tower block by block, or None where it cannot be had.
        layers: Number of blocks, 0 where none can be read.
        width: w of the tokens.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
        self.model: Any = model
        self.text: Any = getattr(model, "text", model)
        self.tokenizer = tokenizer
        word = getattr(tokenizer.encode, "words", ("a",))[0]
        self.special = tokenizer.leading_and_trailing(word)
        self.foreign = isinstance(self.text, HFTextEncoder)
        self.no_tower = self._why_no_tower(word)
        self.tower: NativeTextTower | None = None
        if self.no_tower is None:
            self.tower = NativeTextTower(self.text, tokenizer, sum(self.special), dtype)
        self.layers = 0 if self.foreign else len(self.text.transformer.resblocks)
        config = self.text.config if self.foreign else None
        self.width = int(config.hidden_size if config else self.text.transformer.width)

    def _why_no_tower(self, word: str) -> str | None:
        if self.foreign:
            return "its text tower is a Hugging Face model that gives pooled vectors only"
        if getattr(self.text, "cls_emb", None) is not None:
            return "its class token sees padding through a mask made of ids, as in CoCa"
        if getattr(self.text, "use_pad_mask", False):
            return "it masks padding by ids"
        ids, mask = self.tokenizer([word])
        pool = pool_type(self.text)
        if pool in ("first", "last"):
            same = bool((ids[~mask] == self.tokenizer.pad).all())
            return None if same else "its captions are not filled with the padding token"
        if self.text.attn_mask is None:
            return "it pools the end token but sees the padding after it"
        end = getattr(self.text, "text_eos_id", getattr(self.text, "eos_id", None))
        place = text_global_pool(torch.arange(ids.shape[1])[None], ids, pool, eos_token_id=end)
        return None if place.tolist() == [int(mask.sum()) - 1] else "it does not pool the end token"

    def fits(self, reads: FeatureSpec) -> str | None:
        """Returns why `reads` cannot be had of captions, or None where it can."""
        if reads.kind == "pooled":
            return None
        if self.foreign or reads.kind != "tokens":
            return self.no_tower or no_such_layer(reads, self.layers)
        return no_such_layer(reads, self.layers)

    def pooled(self, texts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Embeddings, not normalised."""
        if self.tower is None:
            ids, _ = self._ids(texts)
            return first_output(self.model.encode_text(ids, normalize=False))
        return self.tower.finish(self.state(texts, -1))

    def state(self, texts: Sequence[str], layer: int) -> Tokens:
        """The state after block `layer` of a model that has a tower."""
        assert self.tower is not None
        return state_after(self.tower, self.tower.start(self.tower.words(texts)), layer)

    def tokens(self, texts: Sequence[str], layer: int) -> Tokens:
        """Tokens after block `layer`, the final norm applied where it is the last."""
        ids, mask = self._ids(texts)
        longest = int(mask.sum(dim=1).max()) if len(mask) else 0
        if self.tower is None:
            output = self.text.forward_intermediates(
                ids,
                indices=[layer],
                stop_early=True,
                normalize_intermediates=layer == -1,
                intermediates_only=True,
                output_fmt="NLC",
            )
            tokens = output["text_intermediates"][0]
        else:
            state = self.state(texts, layer)
            tokens = (self.tower.norm(state) if layer == -1 else state).values
        return masked(tokens[:, :longest], mask[:, :longest])

    def _ids(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"]]:
        ids, mask = self.tokenizer.checked(texts, sum(self.special))
        device = self.model.logit_scale.device
        return ids.to(device), mask.to(device)


def pool_type(tower: Any) -> str:
    """How a text tower pools: "first", "last", "argmax" or "eos"."""
    return getattr(tower, "text_pool_type", getattr(tower, "pool_type", ""))
