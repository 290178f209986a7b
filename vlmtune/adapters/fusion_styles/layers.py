"""Transformer layers in parts, so that whatever depends on one modality is computed once.

In: tokens of one modality, or of pairs. Out: tokens, or what a later part needs of them.
Never: weights of its own. Layers, weight names and `forward` are torch's, which the tests compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.attention import (
    First,
    Leading,
    Mask,
    States,
    attend,
    attend_folded,
    fold,
    project,
)
from vlmtune.errors import UserError

Packed = Float[Tensor, "n t w4"]
"""Query, key, value and the token itself, side by side."""
TokenMask = Bool[Tensor, "n t"]
Memory = Float[Tensor, "n s w"]
MemoryMask = Bool[Tensor, "n s"] | None


def feed_forward(layer: "EncoderLayer | DecoderLayer", x: States) -> States:
    """The feed-forward part of a layer, without its residual and norm."""
    hidden = layer.linear1(x)
    if layer.training and layer.dropout.p > 0:
        # Dropout commutes with the ReLU; applied first it keeps one wide tensor instead of two.
        hidden = torch.native_dropout(hidden, layer.dropout.p, True)[0]
    return layer.linear2(hidden.relu_())


class EncoderLayer(nn.TransformerEncoderLayer):
    """Self-attention and feed-forward, pre- or post-norm (`norm_first`)."""

    def pack(self, x: States) -> Packed:
        """Queries, keys, values and the tokens themselves, side by side."""
        projected = project(self.self_attn, self._normed(x))
        # In mixed precision the tokens would make queries, keys and values as wide as themselves.
        return torch.cat([projected, x.to(projected.dtype)], dim=2)

    def from_packed(self, packed: Packed, mask: Mask, rows: int) -> Leading:
        """The first `rows` tokens after this layer, from packed tokens."""
        query, key, value, x = packed.chunk(4, dim=2)
        first = x[:, :rows]
        first_query = query[:, :rows]
        attended = attend(self.self_attn, first_query, key, value, mask)
        return self._after(first, attended)

    def all(self, x: States, mask: Mask) -> States:
        """All tokens after this layer."""
        projected = project(self.self_attn, self._normed(x))
        query, key, value = projected.chunk(3, dim=2)
        attended = attend(self.self_attn, query, key, value, mask)
        return self._after(x, attended)

    def first(self, x: States, mask: Mask) -> First:
        """The first token after this layer, without keys and values of the others."""
        normed = self._normed(x)
        query = fold(self.self_attn, normed[:, :1])
        first = x[:, :1]
        attended = attend_folded(self.self_attn, query, normed, mask)
        return self._after(first, attended)

    def _normed(self, x: States) -> States:
        return self.norm1(x) if self.norm_first else x

    def _after(self, x: Leading, attended: Leading) -> Leading:
        x = x + self.dropout1(attended)
        if self.norm_first:
            fed = feed_forward(self, self.norm2(x))
            return x + self.dropout2(fed)
        x = self.norm1(x)
        fed = feed_forward(self, x)
        return self.norm2(x + self.dropout2(fed))


class DecoderLayer(nn.TransformerDecoderLayer):
    """Self-attention, cross-attention to a memory, and feed-forward, pre- or post-norm."""

    def self_attend(self, x: States, mask: Mask) -> States:
        """All tokens after self-attention."""
        normed = self.norm1(x) if self.norm_first else x
        projected = project(self.self_attn, normed)
        query, key, value = projected.chunk(3, dim=2)
        attended = attend(self.self_attn, query, key, value, mask)
        return self._after_self(x, attended)

    def self_attend_first(self, x: States, mask: Mask) -> First:
        """The first token after self-attention."""
        normed = self.norm1(x) if self.norm_first else x
        query = fold(self.self_attn, normed[:, :1])
        first = x[:, :1]
        attended = attend_folded(self.self_attn, query, normed, mask)
        return self._after_self(first, attended)

    def cross_query(self, x: States) -> States:
        """Queries of cross-attention, from tokens after self-attention."""
        return project(self.multihead_attn, self._before_cross(x), 0, 1)

    def folded_cross_query(self, x: First) -> Float[Tensor, "n heads w"]:
        """The folded query of cross-attention, from one token after self-attention."""
        return fold(self.multihead_attn, self._before_cross(x))

    def keys_values(self, states: Memory) -> Float[Tensor, "n s w2"]:
        """Keys and values of a memory, side by side."""
        return project(self.multihead_attn, states, 1, 3)

    def cross_attend(
        self, x: States, query: States, keys_values: Float[Tensor, "n s w2"], mask: MemoryMask
    ) -> States:
        """All tokens after this layer, from tokens after self-attention."""
        key, value = keys_values.chunk(2, dim=2)
        attended = attend(self.multihead_attn, query, key, value, mask)
        return self._after_cross(x, attended)

    def cross_attend_folded(
        self,
        x: Float[Tensor, "one_or_n 1 w"],
        query: Float[Tensor, "one_or_n heads w"],
        states: Memory,
        mask: MemoryMask,
    ) -> First:
        """One token after this layer; a single row of `x` and `query` stands for all P."""
        attended = attend_folded(self.multihead_attn, query, states, mask)
        return self._after_cross(x, attended)

    def _after_self(self, x: States, attended: States) -> States:
        x = x + self.dropout1(attended)
        return x if self.norm_first else self.norm1(x)

    def _before_cross(self, x: States) -> States:
        return self.norm2(x) if self.norm_first else x

    def _after_cross(self, x: Float[Tensor, "one_or_n t w"], attended: States) -> States:
        x = x + self.dropout2(attended)
        if self.norm_first:
            fed = feed_forward(self, self.norm3(x))
            return x + self.dropout3(fed)
        x = self.norm2(x)
        fed = feed_forward(self, x)
        return self.norm3(x + self.dropout3(fed))


class Encoder(nn.TransformerEncoder):
    """Encoder layers and a final norm."""

    norm: nn.LayerNorm

    def pack(self, x: States) -> Packed:
        """What the first layer needs of each token; see `EncoderLayer.pack`."""
        return self._layers[0].pack(x)

    def from_packed(self, packed: Packed, mask: Mask) -> States:
        """All tokens after the last layer."""
        x = self._layers[0].from_packed(packed, mask, packed.shape[1])
        for layer in self._layers[1:]:
            x = layer.all(x, mask)
        return self.norm(x)

    def first_from_packed(self, packed: Packed, mask: Mask) -> First:
        """The first token after the last layer, which computes no other."""
        first, *others = self._layers
        if not others:
            return self.norm(first.from_packed(packed, mask, 1))
        *middle, last = others
        x = first.from_packed(packed, mask, packed.shape[1])
        # The layers between need all tokens; the last one computes the first token alone.
        for layer in middle:
            x = layer.all(x, mask)
        return self.norm(last.first(x, mask))

    def all(self, x: States, mask: Mask) -> States:
        """All tokens of one modality after the last layer."""
        for layer in self._layers:
            x = layer.all(x, mask)
        return self.norm(x)

    @property
    def _layers(self) -> list[EncoderLayer]:
        return cast(list[EncoderLayer], list(self.layers))


class Decoder(nn.TransformerDecoder):
    """Decoder layers and a final norm; only [CLS] comes out."""

    norm: nn.LayerNorm

    def read(
        self, query: Float[Tensor, "one_or_n c w"], states: Memory, mask: MemoryMask
    ) -> Float[Tensor, "n c w"]:
        """[CLS] after it read `states` alone; a single row of `query` stands for all P."""
        if query.shape[1] > 1:
            # Several [CLS] tokens see each other, so they cannot stay one row for all pairs.
            query = query.expand(len(states), -1, -1)
            return self._read_by_several(query, states, mask)
        for layer in self._layers:
            query = layer.self_attend_first(query, None)
            folded = layer.folded_cross_query(query)
            query = layer.cross_attend_folded(query, folded, states, mask)
        return self.norm(query)

    def _read_by_several(
        self, x: Float[Tensor, "n c w"], states: Memory, mask: MemoryMask
    ) -> Float[Tensor, "n c w"]:
        for layer in self._layers:
            x = layer.self_attend(x, None)
            query = layer.cross_query(x)
            keys_values = layer.keys_values(states)
            x = layer.cross_attend(x, query, keys_values, mask)
        return self.norm(x)

    def prepare_target(
        self, query: Float[Tensor, "1 1 w"], states: States, mask: TokenMask
    ) -> tuple[Float[Tensor, "n cls"], Float[Tensor, "n t other"]]:
        """What the first layer computes of a [CLS] token and the target before cross-attention.

        Returns:
            The result for [CLS] and for the other tokens, which a decoder of one layer does not
            need: their width is then 0.
        """
        layer = self._layers[0]
        cls = query.expand(len(states), -1, -1)
        # [CLS] goes first, as `decode` returns the first token.
        tokens = torch.cat([cls, states], dim=1)
        mask = with_cls(mask)
        if len(self._layers) == 1:
            # A single layer returns [CLS] alone, so the other tokens need no query.
            x = layer.self_attend_first(tokens, mask)
            folded = layer.folded_cross_query(x)
            prepared = torch.cat([x, folded], dim=1)
            others = states.new_zeros(*states.shape[:2], 0)
            return prepared.flatten(1), others
        # Deeper layers attend to all tokens again: each keeps its query beside it.
        x = layer.self_attend(tokens, mask)
        both = torch.cat([x, layer.cross_query(x)], dim=2)
        return both[:, 0], both[:, 1:]

    def prepare_memory(self, states: Memory) -> Float[Tensor, "n s packed"]:
        """What each layer reads of a memory: keys and values; for the last layer the states."""
        *early, _ = self._layers
        # The last layer folds its one query, so it reads the states without keys and values.
        parts = [layer.keys_values(states) for layer in early]
        return torch.cat([*parts, states], dim=2)

    def decode(
        self,
        cls: Float[Tensor, "n cls"],
        others: Float[Tensor, "n t other"],
        mask: TokenMask,
        memory: Float[Tensor, "n s packed"],
        memory_mask: MemoryMask,
    ) -> First:
        """[CLS] after the last layer; `mask` is that of the other tokens."""
        *early, last = self._layers
        width = last.self_attn.embed_dim
        # Keys and values of the early layers, then the states that the last one folds.
        widths = [2 * width] * len(early) + [width]
        *keys_values, states = memory.split(widths, dim=2)
        if not early:
            # A single layer keeps one token and its folded query, a row for each head.
            prepared = cls.unflatten(1, (-1, width))
            x, query = prepared.split([1, last.self_attn.num_heads], dim=1)
            decoded = last.cross_attend_folded(x, query, states, memory_mask)
            return self.norm(decoded)
        mask = with_cls(mask)
        # Each token beside its query of the first cross-attention.
        tokens = torch.cat([cls[:, None], others], dim=1)
        x, query = tokens.chunk(2, dim=2)
        for number, layer in enumerate(early):
            if number > 0:
                x = layer.self_attend(x, mask)
                query = layer.cross_query(x)
            x = layer.cross_attend(x, query, keys_values[number], memory_mask)
        x = last.self_attend_first(x, mask)
        folded = last.folded_cross_query(x)
        decoded = last.cross_attend_folded(x, folded, states, memory_mask)
        return self.norm(decoded)

    @property
    def other_width(self) -> int:
        """Width of what `prepare_target` returns for tokens other than [CLS]."""
        if len(self._layers) == 1:
            return 0
        return 2 * self._layers[0].self_attn.embed_dim

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.layers))


def with_cls(mask: TokenMask) -> Bool[Tensor, "n t1"]:
    """The mask with a [CLS] token, which is always real, before its tokens."""
    return nn.functional.pad(mask, (1, 0), value=True)


def check_heads(width: int, heads: int) -> None:
    """Raises a `UserError` unless attention can cut the width of tokens into heads."""
    if width % heads:
        raise UserError(
            f"expected heads that divide the token width {width}, got {heads}: "
            "choose another number of heads"
        )


@dataclass(frozen=True)
class LayerFactory:
    """Makes encoders and decoders from what all layers of an adapter share.

    Example:
        >>> encoder = LayerFactory(8, 2, 32, 0.0, True).encoder(1)
        >>> encoder.all(torch.zeros(3, 5, 8), None).shape
        torch.Size([3, 5, 8])
    """

    width: int
    heads: int
    hidden: int
    dropout: float
    norm_first: bool

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)

    def encoder(self, layers: int) -> Encoder:
        """Makes an encoder."""
        layer = EncoderLayer(**self._options())
        norm = nn.LayerNorm(self.width)
        return Encoder(layer, layers, norm, enable_nested_tensor=False)

    def decoder(self, layers: int) -> Decoder:
        """Makes a decoder."""
        layer = DecoderLayer(**self._options())
        norm = nn.LayerNorm(self.width)
        return Decoder(layer, layers, norm)

    def _options(self) -> dict:
        return {
            "d_model": self.width,
            "nhead": self.heads,
            "dim_feedforward": self.hidden,
            "dropout": self.dropout,
            "batch_first": True,
            "norm_first": self.norm_first,
        }


def initialise(modules: Sequence[nn.Module]) -> None:
    """Initialises matrices as `torch.nn.Transformer` does (Xavier, uniform)."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
