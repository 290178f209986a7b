"""The text side of an open_clip model: tokenizer and tower, block by block if that is exact.

In: captions. Out: features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from open_clip.hf_model import HFTextEncoder
from open_clip.transformer import text_global_pool
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.backbones.base import TextTower
from vlmtune.backbones.open_clip.towers import first_of
from vlmtune.backbones.staging import (
    Mask,
    check_words,
    embed_words,
    encode_words,
    last_real,
    masked,
    no_such_layer,
    padded,
    parameters_of,
    too_long,
)
from vlmtune.types import Features, FeatureSpec, Pooled, Tokens


class Tokenizer:
    """Any open_clip tokenizer, with the length of each caption."""

    def __init__(self, encode: Any) -> None:
        self.encode = encode
        inner = getattr(encode, "tokenizer", None)
        if inner is None:
            self.pad = 0  # the id of the padding token
            self.end = int(encode.eot_token_id)
            self.special = frozenset({int(encode.sot_token_id), self.end})
        else:
            self.pad = inner.pad_token_id
            self.end = inner.eos_token_id
            if self.end is None:
                # BERT ends captions with its separator.
                self.end = inner.sep_token_id
            self.special = frozenset(inner.all_special_ids)
        self._ready: dict[str, Tensor] = {}

    def vocabulary(self) -> Mapping[str, int]:
        """Returns the id of each token."""
        if hasattr(self.encode, "tokenizer"):
            return self.encode.tokenizer.get_vocab()
        # Of open_clip's own tokenizer, or of one with a closed vocabulary.
        return getattr(self.encode, "encoder", None) or self.encode.ids

    def ids(self, texts: Sequence[str]) -> Int[Tensor, "n t"]:
        """Returns padded ids, for `use`."""
        return self.encode(list(texts))

    def use(self, texts: Sequence[str], ids: Int[Tensor, "n t"]) -> None:
        """Takes the ids of texts that are tokenized next, in place of those taken before."""
        self._ready = dict(zip(texts, ids, strict=True))

    def __call__(
        self, texts: list[str], length: int | None = None
    ) -> tuple[Int[Tensor, "n t"], Mask]:
        """Returns padded ids and True up to and including the end token.

        Captions are cut to `length` tokens, by default to those that the model reads.
        """
        # Worker processes may have tokenized these very texts already.
        ready = [self._ready[text] for text in texts if text in self._ready]
        if length is None and texts and len(ready) == len(texts):
            ids = torch.stack(ready)
        else:
            ids = self.encode(texts, length)
        # The end token may also be the padding, so its first position counts.
        ends = ids == self.end
        first_end = ends.int().argmax(dim=1)
        up_to_end = first_end + 1
        # A tokenizer may strip its end token; the padding then tells the length.
        is_real = ids != self.pad
        up_to_padding = is_real.sum(dim=1)
        has_end = ends.any(dim=1)
        lengths = torch.where(has_end, up_to_end, up_to_padding)
        position = torch.arange(ids.shape[1])
        return ids, position < lengths[:, None]

    def too_long(self, texts: Sequence[str]) -> list[str]:
        """Returns the captions of more tokens than the model reads."""

        def mask(some: list[str], length: int) -> Mask:
            _, mask = self(some, length)
            return mask

        return too_long(texts, self.encode.context_length, mask)

    def leading_and_trailing(self, word: str) -> tuple[int, int]:
        """How many special tokens stand before and after the words."""
        ids, mask = self([word])
        tokens = ids[mask].tolist()
        # A word may be several tokens, which stand together.
        words = [i for i, token in enumerate(tokens) if token not in self.special]
        trailing = len(tokens) - words[-1] - 1
        return words[0], trailing

    def checked(self, texts: Sequence[str], special: int) -> tuple[Tensor, Tensor]:
        """Returns ids and mask, or raises a `UserError` if a caption has only `special` tokens."""
        ids, mask = self(list(texts))
        check_words(texts, mask, special)
        return ids, mask


class NativeTextTower(TextTower):
    """open_clip's own text transformer.

    If attention is causal and the end token is pooled, padding is cut. Other towers (SigLIP's) need
    their full length; `start` fills it with the padding token's embedding, and all of it is real.
    """

    def __init__(self, tower: Any, tokenizer: Tokenizer, special: int, dtype: torch.dtype) -> None:
        self.tower = tower
        self._tokenizer = tokenizer
        self._special = special
        self._dtype = dtype
        # With causal attention nothing up to the end token sees the padding.
        self.trims = pool_type(tower) != "last" and tower.attn_mask is not None
        self.blocks = list(tower.transformer.resblocks)
        self.tail = parameters_of(tower.ln_final, tower.text_projection)
        self.layers = len(self.blocks)
        self.width = int(tower.transformer.width)
        self.positions = int(tower.positional_embedding.shape[0])
        self.embedding: nn.Embedding = tower.token_embedding

    @override
    def words(self, texts: Sequence[str]) -> Tokens:
        ids, mask = self._tokenizer.checked(texts, self._special)
        longest = _longest(mask)
        ids = ids[:, :longest]
        mask = mask[:, :longest]
        return embed_words(self.embedding, ids, mask)

    @override
    def vocabulary(self) -> Mapping[str, int]:
        return self._tokenizer.vocabulary()

    @override
    def start(self, words: Tokens) -> Tokens:
        if not self.trims:
            pad = torch.tensor(self._tokenizer.pad, device=words.device)
            # Attention sees the padding, so it must be what training saw.
            words = padded(words, self.embedding(pad), self.positions)
        length = words.mask.shape[1]
        positions = self.tower.positional_embedding[:length].to(self._dtype)
        tokens = words.values.to(self._dtype) + positions
        return words.masked(tokens)

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        tokens = state.values.to(self._dtype)
        causal = self.tower.attn_mask
        if causal is not None:
            length = state.mask.shape[1]
            # The mask is for the full length.
            causal = causal[:length, :length]
        for block in self.blocks[first:stop]:
            tokens = block(tokens, attn_mask=causal)
        return state.masked(tokens)

    @override
    def norm(self, state: Tokens) -> Tokens:
        normed = self.tower.ln_final(state.values.to(self._dtype))
        return state.masked(normed)

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        tokens = self.norm(state).values
        first = pool_type(self.tower) == "first"
        pooled = tokens[:, 0] if first else last_real(tokens, state.mask)
        pooled = pooled.to(self._dtype)
        projection = self.tower.text_projection
        if isinstance(projection, nn.Module):
            pooled = projection(pooled)
        elif projection is not None:
            pooled = pooled @ projection
        return pooled.float()


class TextSide:
    """The text features of any open_clip model.

    It is not a module, so the model's weights keep one name each.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
        self.model: Any = model
        self.text: Any = getattr(model, "text", model)
        self.tokenizer = tokenizer
        # A closed vocabulary need not have "a".
        word = getattr(tokenizer.encode, "words", ("a",))[0]
        self.special = tokenizer.leading_and_trailing(word)  # numbers of special tokens
        self.foreign = isinstance(self.text, HFTextEncoder)
        self.no_tower = self._why_no_tower(word)
        self.tower: NativeTextTower | None = None
        if self.no_tower is None:
            self.tower = NativeTextTower(self.text, tokenizer, sum(self.special), dtype)
        if self.foreign:
            self.layers = 0  # it gives tokens of no block
            self.width = int(self.text.config.hidden_size)
        else:
            transformer = self.text.transformer
            self.layers = len(transformer.resblocks)
            self.width = int(transformer.width)

    def _why_no_tower(self, word: str) -> str | None:
        if self.foreign:
            return "its text tower is a Hugging Face model that gives pooled vectors only"
        if getattr(self.text, "cls_emb", None) is not None:
            return "its class token attends to padding by a mask made of ids, as in CoCa"
        if getattr(self.text, "use_pad_mask", False):
            return "it masks padding by ids"
        ids, mask = self.tokenizer([word])
        pool = pool_type(self.text)
        if pool in ("first", "last"):
            padding = ids[~mask]
            same = bool((padding == self.tokenizer.pad).all())
            return None if same else "its captions are not filled with the padding token"
        if self.text.attn_mask is None:
            return "it pools the end token but sees the padding after it"
        # Pools positions in place of tokens, to see which position is pooled.
        positions = torch.arange(ids.shape[1])[None]
        end = getattr(self.text, "text_eos_id", getattr(self.text, "eos_id", None))
        pooled = text_global_pool(positions, ids, pool, eos_token_id=end)
        last = int(mask.sum()) - 1
        return None if pooled.tolist() == [last] else "it does not pool the end token"

    def fits(self, spec: FeatureSpec) -> str | None:
        """Returns why captions have no features for `spec`, or None if they have."""
        if spec.kind == "pooled":
            return None
        if self.foreign or spec.kind != "tokens":
            return self.no_tower or no_such_layer(spec, self.layers)
        return no_such_layer(spec, self.layers)

    def encode(self, texts: Sequence[str], spec: FeatureSpec) -> Features:
        """Encodes captions, with the tower where there is one."""
        if self.tower is not None:
            return encode_words(self.tower, self.tower.words(texts), spec)
        ids, mask = self.tokenizer.checked(texts, sum(self.special))
        device = self.model.logit_scale.device
        ids = ids.to(device)
        mask = mask.to(device)
        if spec.kind == "pooled":
            pooled = first_of(self.model.encode_text(ids, normalize=False))
            return Pooled(pooled.float())
        # Without a tower all blocks run on padded captions.
        output = self.text.forward_intermediates(
            ids,
            indices=[spec.layer],
            stop_early=True,
            normalize_intermediates=spec.layer == -1,
            intermediates_only=True,
            output_fmt="NLC",
        )
        tokens = output["text_intermediates"][0]
        longest = _longest(mask)
        return masked(tokens[:, :longest], mask[:, :longest])


def _longest(mask: Mask) -> int:
    if not len(mask):
        return 0
    return int(mask.sum(dim=1).max())


def pool_type(tower: Any) -> str:
    """How a text tower pools: "first", "last", "argmax" or "eos"."""
    return getattr(tower, "text_pool_type", getattr(tower, "pool_type", ""))
