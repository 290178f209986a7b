"""Joint adapters that fuse frozen token features: what MM-Adapter and MM-Pred have in common."""

from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from vlmtune.adapters.base import JointAdapter
from vlmtune.adapters.fusion_styles.base import FusionStyle
from vlmtune.adapters.fusion_styles.layers import Blocks, initialise
from vlmtune.adapters.fusion_styles.mdetr import Mdetr
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, PooledTokens, Tokens


class FusedAdapter(JointAdapter[Tokens, Tokens, PooledTokens]):
    """Projects image tokens to the text's width, fuses both modalities, and scores the outcome.

    Args:
        fusion: The style of the fusion; None for `Mdetr`.
        heads: Attention heads.
        encoder_layers: Self-attention layers (of each encoder); None for the style's own number.
        decoder_layers: Cross-attention layers (of each decoder); None for the style's own number.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability in training.
        norm_first: Pre-norm rather than post-norm.
        normalize_tokens: Layer-normalise projected image tokens and text tokens before fusing them.
        masked: Hide padding from attention.
        reads: Layers of the image's and of the text's tokens, counted from the end.
        memory: Bytes that scoring a chunk of pairs may take.
        training_memory: Bytes of activations kept for the backward pass; beyond them activations
            are computed again.

    Raises:
        UserError: A budget below 1.
    """

    def __init__(
        self,
        fusion: FusionStyle | None,
        heads: int,
        encoder_layers: int | None,
        decoder_layers: int | None,
        hidden: int,
        dropout: float,
        norm_first: bool,
        normalize_tokens: bool,
        masked: bool,
        reads: tuple[int, int],
        memory: int,
        training_memory: int,
    ) -> None:
        super().__init__()
        if memory < 1 or training_memory < 0:
            raise UserError(
                f"expected memory above 0 and training_memory of at least 0 bytes, got {memory} "
                f"and {training_memory}: raise them"
            )
        self.style = Mdetr() if fusion is None else fusion
        self.heads, self.hidden, self.dropout, self.norm_first = heads, hidden, dropout, norm_first
        self.layers = self._depth(encoder_layers, decoder_layers)
        self.normalize_tokens, self.masked = normalize_tokens, masked
        self.image_input, self.text_input = (FeatureSpec("tokens", layer) for layer in reads)
        self.memory, self.training_memory = memory, training_memory

    def _depth(self, encoder_layers: int | None, decoder_layers: int | None) -> tuple[int, int]:
        """Numbers of encoder and decoder layers, where the style can have them."""
        style = self.style
        if encoder_layers is None:
            encoder_layers = style.encoder_layers
        if decoder_layers is None:
            decoder_layers = style.decoder_layers
        if (
            bool(decoder_layers) != bool(style.decoder_layers)
            or min(encoder_layers, decoder_layers + 1) < 1
        ):
            wanted = "1 or more" if style.decoder_layers else "no"
            raise UserError(
                f"expected 1 or more encoder_layers and {wanted} decoder_layers with "
                f"{type(style).__name__}, got {encoder_layers} and {decoder_layers}: "
                "leave them out for the style's own numbers"
            )
        return encoder_layers, decoder_layers

    def attach(self, backbone: Backbone) -> None:
        """Makes the projection, the fusion's layers and the [CLS] tokens in the text's width."""
        super().attach(backbone)
        width = backbone.text_width
        blocks = Blocks(width, self.heads, self.hidden * width, self.dropout, self.norm_first)
        self.special = backbone.text_special
        self.project = nn.Linear(backbone.image_width, width)
        made = self.style.build(blocks, *self.layers)
        for name, module in made.items():
            self.add_module(name, module)
        initialise(list(made.values()))
        self.query = nn.Parameter(torch.rand(1, self.style.queries, width))

    def prepare_image(self, image: Tokens) -> PooledTokens:
        """Projects image tokens, then takes them as far as they go without a text."""
        tokens = self.normalized(self.project(image.values))
        mask = image.mask if self.masked else torch.ones_like(image.mask)
        return self.style.prepare_image(tokens, mask, self.query)

    def prepare_text(self, text: Tokens) -> PooledTokens:
        """Takes text tokens as far as they go without an image; `pooled` starts with the goal."""
        text = text.trimmed()
        mask = text.mask if self.masked else torch.ones_like(text.mask)
        prepared = self.style.prepare_text(self.normalized(text.values), mask, self.query)
        return replace(prepared, pooled=torch.cat([self.goal(text), prepared.pooled], dim=1))

    def score_pairs(self, image: PooledTokens, text: PooledTokens) -> Float[Tensor, "P"]:
        """Fuses and scores P prepared pairs."""
        width = self.goal_width
        goal, pooled = text.pooled[:, :width], text.pooled[:, width:]
        fused = self.style.fuse(image, PooledTokens(pooled, text.tokens), self.query)
        return self.judge(fused, goal)

    @property
    @abstractmethod
    def goal_width(self) -> int:
        """g, the width of what outputs are compared with."""

    @abstractmethod
    def goal(self, text: Tokens) -> Float[Tensor, "n g"]:
        """What the output of the fusion is compared with, of each text."""

    @abstractmethod
    def judge(
        self, fused: Float[Tensor, "P c w"], goal: Float[Tensor, "P g"]
    ) -> Float[Tensor, "P"]:
        """Scores the c outputs of the fusion."""

    def pair_bytes(self, image: PooledTokens, text: PooledTokens, training: bool) -> int:
        """Estimates bytes from the numbers of tokens and the width.

        Without a backward pass: the pair's prepared rows twice (as gathered, and side by side), and
        for the layer with most tokens its hidden units and 6 widths a token. With one: the rows
        once, and for each layer its hidden units and 15 widths a token.
        """
        rows = self.style.rows(image.tokens.mask.shape[1], text.tokens.mask.shape[1])
        gathered = sum(
            values.numel() // max(len(values), 1)
            for part in (image, text)
            for values in (part.pooled, part.tokens.values)
        )
        width = self.query.shape[2]
        if training:
            values = gathered + sum(rows) * width * (self.hidden + 15)
        else:
            values = 2 * gathered + max(rows) * width * (self.hidden + 6)
        return values * image.tokens.values.element_size()

    def normalized(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Tokens as they are fused: layer-normalised where `normalize_tokens` says so."""
        return layer_norm(tokens, tokens.shape[-1:]) if self.normalize_tokens else tokens
