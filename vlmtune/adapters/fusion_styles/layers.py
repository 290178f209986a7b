"""Transformer layers in parts, so that what depends on one modality alone is computed once.

The layers are torch's own: weights, their names and `forward` are those of
`torch.nn.TransformerEncoder` and `TransformerDecoder`. What scores pairs are the methods added
here, which give the same numbers (their tests compare with `forward`) from parts made before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.attention import attend, attend_folded, fold, project
from vlmtune.errors import UserError


def feed(layer: "EncoderLayer | DecoderLayer", x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
    """The feed-forward part of a layer, without its residual and norm."""
    hidden = layer.linear1(x)
    if layer.training and layer.dropout.p > 0:
        # Before the ReLU, which it commutes with: then one tensor of that width is kept, not two.
        hidden = torch.native_dropout(hidden, layer.dropout.p, True)[0]
    return layer.linear2(hidden.relu_())


class EncoderLayer(nn.TransformerEncoderLayer):
    """Self-attention and feed-forward, pre- or post-norm (`norm_first`)."""

    def packed(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w4"]:
        """Queries, keys, values and the tokens themselves side by side; each token's own."""
        return torch.cat([self._project(x), x], dim=2)

    def from_packed(
        self, packed: Float[Tensor, "P t w4"], mask: Bool[Tensor, "P t"] | None, rows: int
    ) -> Float[Tensor, "P rows w"]:
        """The first `rows` tokens after this layer, from what `packed` gives of each token."""
        query, key, value, x = packed.chunk(4, dim=2)
        return self._after(x[:, :rows], attend(self.self_attn, query[:, :rows], key, value, mask))

    def all(
        self, x: Float[Tensor, "P t w"], mask: Bool[Tensor, "P t"] | None
    ) -> Float[Tensor, "P t w"]:
        """All tokens after this layer."""
        query, key, value = self._project(x).chunk(3, dim=2)
        return self._after(x, attend(self.self_attn, query, key, value, mask))

    def first(
        self, x: Float[Tensor, "P t w"], mask: Bool[Tensor, "P t"] | None
    ) -> Float[Tensor, "P 1 w"]:
        """The first token after this layer, at a fraction of the cost of all."""
        normed = self.norm1(x) if self.norm_first else x
        query = fold(self.self_attn, normed[:, :1])
        return self._after(x[:, :1], attend_folded(self.self_attn, query, normed, mask))

    def _project(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w3"]:
        return project(self.self_attn, self.norm1(x) if self.norm_first else x)

    def _after(
        self, x: Float[Tensor, "P rows w"], attended: Float[Tensor, "P rows w"]
    ) -> Float[Tensor, "P rows w"]:
        x = x + self.dropout1(attended)
        if self.norm_first:
            return x + self.dropout2(feed(self, self.norm2(x)))
        x = self.norm1(x)
        return self.norm2(x + self.dropout2(feed(self, x)))


class DecoderLayer(nn.TransformerDecoderLayer):
    """Self-attention, attention to a memory, and feed-forward, pre- or post-norm."""

    def gathered(
        self, x: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"] | None
    ) -> Float[Tensor, "n t w"]:
        """All tokens after self-attention."""
        normed = self.norm1(x) if self.norm_first else x
        query, key, value = project(self.self_attn, normed).chunk(3, dim=2)
        return self._gather(x, attend(self.self_attn, query, key, value, mask))

    def gathered_first(
        self, x: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"] | None
    ) -> Float[Tensor, "n 1 w"]:
        """The first token after self-attention."""
        normed = self.norm1(x) if self.norm_first else x
        query = fold(self.self_attn, normed[:, :1])
        return self._gather(x[:, :1], attend_folded(self.self_attn, query, normed, mask))

    def query(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Queries to the memory, of tokens after self-attention."""
        return project(self.multihead_attn, self._before(x), 0, 1)

    def memory(self, states: Float[Tensor, "n s w"]) -> Float[Tensor, "n s w2"]:
        """Keys and values of the memory, side by side."""
        return project(self.multihead_attn, states, 1, 3)

    def read(
        self,
        x: Float[Tensor, "P t w"],
        query: Float[Tensor, "P t w"],
        memory: Float[Tensor, "P s w2"],
        mask: Bool[Tensor, "P s"] | None,
    ) -> Float[Tensor, "P t w"]:
        """All tokens after this layer, from those after self-attention."""
        key, value = memory.chunk(2, dim=2)
        return self._after(x, attend(self.multihead_attn, query, key, value, mask))

    def folded(self, x: Float[Tensor, "n 1 w"]) -> Float[Tensor, "n heads w"]:
        """The query to the memory of one token after self-attention, for `read_folded`."""
        return fold(self.multihead_attn, self._before(x))

    def read_folded(
        self,
        x: Float[Tensor, "one_or_P 1 w"],
        query: Float[Tensor, "one_or_P heads w"],
        states: Float[Tensor, "P s w"],
        mask: Bool[Tensor, "P s"] | None,
    ) -> Float[Tensor, "P 1 w"]:
        """One token after this layer; `x` and `query` are of each row or the same for all."""
        return self._after(x, attend_folded(self.multihead_attn, query, states, mask))

    def _gather(
        self, x: Float[Tensor, "n t w"], attended: Float[Tensor, "n t w"]
    ) -> Float[Tensor, "n t w"]:
        x = x + self.dropout1(attended)
        return x if self.norm_first else self.norm1(x)

    def _before(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        return self.norm2(x) if self.norm_first else x

    def _after(
        self, x: Float[Tensor, "one_or_P t w"], attended: Float[Tensor, "P t w"]
    ) -> Float[Tensor, "P t w"]:
        x = x + self.dropout2(attended)
        if self.norm_first:
            return x + self.dropout3(feed(self, self.norm3(x)))
        x = self.norm2(x)
        return self.norm3(x + self.dropout3(feed(self, x)))


class Encoder(nn.TransformerEncoder):
    """Encoder layers and a final norm."""

    def packed(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w4"]:
        """What the first layer needs of each token, and can be made of it alone."""
        return self._layers[0].packed(x)

    def from_packed(
        self, packed: Float[Tensor, "P t w4"], mask: Bool[Tensor, "P t"] | None
    ) -> Float[Tensor, "P t w"]:
        """All tokens after the last layer."""
        x = self._layers[0].from_packed(packed, mask, packed.shape[1])
        for layer in self._layers[1:]:
            x = layer.all(x, mask)
        return self._normed(x)

    def first_from_packed(
        self, packed: Float[Tensor, "P t w4"], mask: Bool[Tensor, "P t"] | None
    ) -> Float[Tensor, "P 1 w"]:
        """The first token after the last layer, which is computed for it alone."""
        only = len(self._layers) == 1
        x = self._layers[0].from_packed(packed, mask, 1 if only else packed.shape[1])
        if not only:
            for layer in self._layers[1:-1]:
                x = layer.all(x, mask)
            x = self._layers[-1].first(x, mask)
        return self._normed(x)

    def all(
        self, x: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"] | None
    ) -> Float[Tensor, "n t w"]:
        """All tokens of one modality after the last layer."""
        for layer in self._layers:
            x = layer.all(x, mask)
        return self._normed(x)

    @property
    def _layers(self) -> list[EncoderLayer]:
        return cast(list[EncoderLayer], list(self.layers))

    def _normed(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        assert self.norm is not None
        return self.norm(x)


class Decoder(nn.TransformerDecoder):
    """Decoder layers and a final norm, of which the first target token, [CLS], is asked for."""

    def read(
        self,
        query: Float[Tensor, "one_or_P 1 w"],
        states: Float[Tensor, "P s w"],
        mask: Bool[Tensor, "P s"] | None,
    ) -> Float[Tensor, "P 1 w"]:
        """[CLS] alone reads `states`; before it has, it may be the same for all rows."""
        for layer in self._layers:
            query = layer.gathered_first(query, None)
            query = layer.read_folded(query, layer.folded(query), states, mask)
        return self._normed(query)

    def target(
        self, tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"] | None
    ) -> tuple[Float[Tensor, "n cls"], Float[Tensor, "n words other"]]:
        """What the first layer makes of target tokens before it reads a memory.

        Args:
            tokens: [CLS] and, after it, tokens of one modality.
            mask: True where a token is real.

        Returns:
            That of [CLS], and of the other tokens, of width 0 where one layer is all: then they
            are not needed any more.
        """
        layer = self._layers[0]
        if len(self._layers) == 1:
            x = layer.gathered_first(tokens, mask)
            cls = torch.cat([x, layer.folded(x)], dim=1).flatten(1)
            return cls, tokens.new_zeros(len(tokens), tokens.shape[1] - 1, 0)
        x = layer.gathered(tokens, mask)
        both = torch.cat([x, layer.query(x)], dim=2)
        return both[:, 0], both[:, 1:]

    def memory(self, states: Float[Tensor, "n s w"]) -> Float[Tensor, "n s packed"]:
        """What each layer reads of a memory: keys and values, and for the last the states."""
        return torch.cat([*(layer.memory(states) for layer in self._layers[:-1]), states], dim=2)

    def decode(
        self,
        cls: Float[Tensor, "P cls"],
        others: Float[Tensor, "P words other"],
        mask: Bool[Tensor, "P t"] | None,
        memory: Float[Tensor, "P s packed"],
        memory_mask: Bool[Tensor, "P s"] | None,
    ) -> Float[Tensor, "P 1 w"]:
        """[CLS] after the last layer.

        Args:
            cls: From `target`.
            others: From `target`.
            mask: True where a target token, [CLS] the first, is real.
            memory: From `memory`.
            memory_mask: True where a token of the memory is real.
        """
        *early, last = self._layers
        width = last.self_attn.embed_dim
        *keys_values, states = memory.split([2 * width] * len(early) + [width], dim=2)
        if not early:
            x, query = cls.unflatten(1, (-1, width)).split([1, last.self_attn.num_heads], dim=1)
            return self._normed(last.read_folded(x, query, states, memory_mask))
        x, query = torch.cat([cls[:, None], others], dim=1).chunk(2, dim=2)
        for layer, following, part in zip(early, self._layers[1:], keys_values, strict=True):
            x = layer.read(x, query, part, memory_mask)
            if following is not last:
                x = following.gathered(x, mask)
                query = following.query(x)
        x = last.gathered_first(x, mask)
        return self._normed(last.read_folded(x, last.folded(x), states, memory_mask))

    def target_widths(self) -> tuple[int, int]:
        """Widths of what `target` returns."""
        attention = self._layers[0].self_attn
        if len(self._layers) == 1:
            return (1 + attention.num_heads) * attention.embed_dim, 0
        return 2 * attention.embed_dim, 2 * attention.embed_dim

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.layers))

    def _normed(self, x: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        assert self.norm is not None
        return self.norm(x)


@dataclass(frozen=True)
class Blocks:
    """What all layers of a fusion have in common.

    Attributes:
        width: w of the tokens.
        heads: Attention heads.
        hidden: Width of the feed-forward layers.
        dropout: Dropout probability in training.
        norm_first: Pre-norm rather than post-norm.

    Raises:
        UserError: The heads do not divide the width, or a number is out of range.

    Example:
        >>> encoder = Blocks(8, 2, 32, 0.0, True).encoder(1)
        >>> encoder.all(torch.zeros(3, 5, 8), None).shape
        torch.Size([3, 5, 8])
    """

    width: int
    heads: int
    hidden: int
    dropout: float
    norm_first: bool

    def __post_init__(self) -> None:
        if min(self.heads, self.hidden) < 1 or not 0 <= self.dropout < 1:
            raise UserError(
                f"expected heads and hidden of at least 1 and dropout in [0, 1), got {self.heads} "
                f"heads, {self.hidden} hidden units and dropout {self.dropout}: correct them"
            )
        if self.width % self.heads:
            raise UserError(
                f"expected heads that divide the token width {self.width}, got {self.heads}: "
                "choose another number of heads"
            )

    def encoder(self, layers: int) -> Encoder:
        """Makes an encoder of `layers` layers."""
        layer = EncoderLayer(
            self.width,
            self.heads,
            self.hidden,
            self.dropout,
            batch_first=True,
            norm_first=self.norm_first,
        )
        return Encoder(layer, layers, nn.LayerNorm(self.width), enable_nested_tensor=False)

    def decoder(self, layers: int) -> Decoder:
        """Makes a decoder of `layers` layers."""
        layer = DecoderLayer(
            self.width,
            self.heads,
            self.hidden,
            self.dropout,
            batch_first=True,
            norm_first=self.norm_first,
        )
        return Decoder(layer, layers, nn.LayerNorm(self.width))


def initialise(modules: Sequence[nn.Module]) -> None:
    """Initialises matrices as `torch.nn.Transformer` does (Xavier, uniform)."""
    for module in modules:
        for parameter in module.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
