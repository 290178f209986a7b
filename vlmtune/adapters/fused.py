"""Joint adapters that fuse frozen token features: what MM-Adapter and MM-Pred share.

In: image and text tokens. Out: the [CLS] tokens of a fusion style, scored by a subclass.
Never: a choice of pairs; the caller names them.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from typing_extensions import override

from vlmtune.adapters.base import Dropout, JointAdapter, PairScores
from vlmtune.adapters.fusion_styles.base import (
    ClsOutputs,
    FusionStyle,
    JointEncoderStyle,
    tokens_only,
)
from vlmtune.adapters.fusion_styles.layers import LayerFactory, initialise
from vlmtune.adapters.fusion_styles.mdetr import Mdetr
from vlmtune.adapters.towers import (
    check_blocks,
    fusion_of,
    text_tower,
    with_positions,
    word_embeddings,
)
from vlmtune.backbones.base import Backbone, Fusion
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, PooledTokens, Tokens


class FusedAdapter(JointAdapter[Tokens, Tokens, PooledTokens]):
    """Projects image tokens to the text's width, fuses both modalities, and scores the output.

    Args:
        heads: Attention heads.
        encoder_layers: Self-attention layers (of each encoder); None for the style's default.
        decoder_layers: Cross-attention layers (of each decoder); None for the style's default.
        hidden: Width of the feed-forward layers, as a multiple of the token width.
        dropout: Dropout probability in training.
        norm_first: Pre-norm (steadier at high learning rates) rather than post-norm.
        normalize_tokens: Layer-normalise (without parameters) the projected image tokens and the
            text tokens before fusing them; a target stays as it is. Ours: states inside a
            pre-trained tower are large (a standard deviation of 3 to 5 in the shipped model), so a
            new pre-norm layer hardly moves them.
        masked: Hide padding from attention.
        image_layer: Layer of the image tokens, counted from the end.
        text_layer: Layer of the text tokens, counted from the end, or "words" for the embeddings
            of the tokens before the first block (ours).
        replaces: Number of the last blocks of the backbone's own fusion that the new layers replace
            (Cola, section 6.1, with 2 of FLAVA's). They then read patches and words as the earlier,
            frozen blocks fuse them for each pair, and `project` maps both; the target comes from
            the text tower's last layer. 0 reads the layers of both towers.
        fusion: The fusion style, an object of `vlmtune.adapters.fusion_styles`; None for `Mdetr`.
        memory: Bytes that scoring a chunk of pairs may take, see `JointAdapter`.
        training_memory: Bytes of activations kept for the backward pass, see `JointAdapter`.
    """

    def __init__(
        self,
        heads: PositiveInt = 4,
        encoder_layers: int | None = None,
        decoder_layers: int | None = None,
        hidden: PositiveInt = 4,
        dropout: Dropout = 0.1,
        norm_first: bool = False,
        normalize_tokens: bool = False,
        masked: bool = True,
        image_layer: int = -2,
        text_layer: int | Literal["words"] = -2,
        replaces: NonNegativeInt = 0,
        fusion: FusionStyle | None = None,
        memory: PositiveInt | None = None,
        training_memory: NonNegativeInt | None = None,
    ) -> None:
        super().__init__()
        self.style = Mdetr() if fusion is None else fusion
        self.gives_reading = isinstance(self.style, JointEncoderStyle) and not replaces
        self.heads = heads
        self.hidden = hidden
        self.dropout = dropout
        self.norm_first = norm_first
        self.layers = _layers(self.style, encoder_layers, decoder_layers)
        self.normalize_tokens = normalize_tokens
        self.masked = masked
        self.image_input = FeatureSpec("tokens", image_layer)
        # The layer of the words is known once the backbone is.
        layer = -2 if text_layer == "words" else text_layer
        self.text_input = FeatureSpec("tokens", layer)
        self.from_words = text_layer == "words"
        self.replaces = replaces
        self.fusion: Fusion | None = None  # no module, so the backbone's weights keep one name
        self.memory = memory
        self.training_memory = training_memory

    @override
    def attach(self, backbone: Backbone) -> None:
        if self.from_words:
            self.text_tower = text_tower(backbone)
            self.text_input = word_embeddings(self.text_tower)
        if self.replaces:
            self.fusion = fusion_of(backbone, "joined")
            check_blocks(self.replaces, len(self.fusion.blocks), "replaces")
            self.image_input = self.fusion.image_input
            self.text_input = self.fusion.text_input
        super().attach(backbone)
        self.special = backbone.text_special
        width = backbone.text_width
        # Image tokens are projected to the text's width, which the layers have.
        read_width = backbone.image_width
        if self.fusion is not None:
            read_width = self.fusion.width
        self.project = nn.Linear(read_width, width)
        hidden = self.hidden * width
        factory = LayerFactory(width, self.heads, hidden, self.dropout, self.norm_first)
        layers = self.style.build(factory, *self.layers)
        for name, module in layers.items():
            self.add_module(name, module)
        initialise(list(layers.values()))
        query = torch.rand(1, self.style.queries, width)
        self.query = nn.Parameter(query)

    @override
    def prepare_image(self, image: Tokens) -> PooledTokens:
        if self.fusion is not None:
            return tokens_only(self.fusion.prepare_image(image))
        return self._image_side(image)

    @override
    def prepare_text(self, text: Tokens) -> PooledTokens:
        text = text.trimmed()
        if self.fusion is None:
            if self.from_words:
                text = with_positions(self.text_tower, text)
            words = self._fusible(text)
            prepared = self.style.prepare_text(words, self.query)
        else:
            prepared = tokens_only(self.fusion.prepare_text(text))
        # The target comes first, then what the style keeps beside its tokens.
        target = self.target(text)
        pooled = torch.cat([target, prepared.pooled], dim=1)
        return replace(prepared, pooled=pooled)

    def _image_side(self, image: Tokens) -> PooledTokens:
        patches = self._fusible(self._projected(image))
        return self.style.prepare_image(patches, self.query)

    def _projected(self, tokens: Tokens) -> Tokens:
        return replace(tokens, values=self.project(tokens.values))

    def _fusible(self, tokens: Tokens) -> Tokens:
        values = self.normalized(tokens.values)
        return tokens.with_values(values) if self.masked else Tokens.full(values)

    def normalized(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Layer-normalises tokens where `normalize_tokens` is True."""
        if not self.normalize_tokens:
            return tokens
        return layer_norm(tokens, tokens.shape[-1:])

    @override
    def score_pairs(self, image: PooledTokens, text: PooledTokens) -> PairScores:
        target = text.pooled[:, : self.target_width]
        outputs = self.cls_outputs(image, text)
        return self.score_head(outputs, target)

    def cls_outputs(self, image: PooledTokens, text: PooledTokens) -> ClsOutputs:
        """Returns the [CLS] outputs of text i with image i, which the score is made of."""
        if self.fusion is None:
            # Without the target, which the style knows nothing of.
            of_style = text.pooled[:, self.target_width :]
            text = replace(text, pooled=of_style)
            return self.style.fuse(image, text, self.query)
        # Blocks that stay run pair by pair: nothing after them can be prepared once.
        patches, words = self.fusion.joined(image.tokens, text.tokens, self.replaces)
        # Joined words have the fusion's width, as patches have, so both are projected.
        projected = self._projected(words)
        text_side = self.style.prepare_text(self._fusible(projected), self.query)
        image_side = self._image_side(patches)
        return self.style.fuse(image_side, text_side, self.query)

    @override
    def reading(self, image: PooledTokens, text: PooledTokens) -> Float[Tensor, "P words patches"]:
        """How much each text token attends to each patch, see `JointEncoderStyle.reading`."""
        assert isinstance(self.style, JointEncoderStyle)
        return self.style.reading(image.tokens, text.tokens, self.heads)

    @property
    def target_width(self) -> int:
        """g, the width of the targets; 0 where outputs are compared with none."""
        return 0

    def target(self, text: Tokens) -> Float[Tensor, "n g"]:
        """The vector of each text that the output of the fusion is compared with."""
        return text.values.new_zeros(len(text), 0)

    @abstractmethod
    def score_head(self, fused: ClsOutputs, target: Float[Tensor, "P g"]) -> PairScores:
        """Scores the c outputs of the fusion."""

    @override
    def pair_bytes(self, image: PooledTokens, text: PooledTokens, training: bool) -> int:
        patches = image.token_count
        words = text.token_count
        counts = self.style.tokens_per_layer(patches, words)
        if self.fusion is not None:  # its blocks, and what a style else prepares once
            counts = [*counts, patches + words]
        gathered = 0  # numbers of a pair's rows
        for side in (image, text):
            for tensor in (side.pooled, side.tokens.values):
                gathered += tensor.numel() // max(len(tensor), 1)
        width = self.query.shape[2]
        if training:
            # The rows once, and for each layer its hidden units and 15 widths a token.
            activations = sum(counts) * width * (self.hidden + 15)
            numbers = gathered + activations
        else:
            # The rows twice (gathered, and side by side), and for the layer with most tokens its
            # hidden units and 6 widths a token.
            activations = max(counts) * width * (self.hidden + 6)
            numbers = 2 * gathered + activations
        return numbers * image.tokens.values.element_size()


def _layers(style: FusionStyle, encoder: int | None, decoder: int | None) -> tuple[int, int]:
    """Numbers of encoder and decoder layers, after checking that the style can have them."""
    if encoder is None:
        encoder = style.encoder_layers
    if decoder is None:
        decoder = style.decoder_layers
    # A style has decoders or has none: the option cannot add or remove them.
    decodes = style.decoder_layers > 0
    if encoder < 1 or decoder < 0 or (decoder > 0) != decodes:
        wanted = "1 or more" if decodes else "no"
        raise UserError(
            f"expected 1 or more encoder_layers and {wanted} decoder_layers with "
            f"{type(style).__name__}, got {encoder} and {decoder}: "
            "leave them out for the style's default"
        )
    return encoder, decoder
