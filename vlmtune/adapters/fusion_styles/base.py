"""What a fusion style is: which layers image and text tokens go through together.

In: image and text tokens of one width, and learned [CLS] tokens. Out: the [CLS] tokens of pairs.
Never: weights of its own; it returns its layers and the adapter owns them.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.adapters.fusion_styles.attention import split_heads
from vlmtune.adapters.fusion_styles.layers import Encoder, LayerFactory
from vlmtune.config import Configured
from vlmtune.types import PooledTokens, Tokens

ClsTokens = Float[Tensor, "1 c w"]
ClsOutputs = Float[Tensor, "P c w"]


class FusionStyle(Configured, ABC):
    """Fuses image tokens and text tokens into [CLS] tokens.

    `prepare_image` and `prepare_text` run once per image and once per text, `fuse` once per pair.
    Masked tokens never change an output.

    Letters, from Cola (Ray et al. 2023), section 10.1: I are the image's tokens (t x v), W maps
    their width v to the width w of the text, Q are the text's tokens, Enc and Dec are the encoders
    and decoders, [CLS] is `query`. Parameters are counted on CLIP ViT-B/32 (v 768, w 512, 4 heads,
    2,048 hidden). MM-Adapter adds 2 (scale and offset of the cosine), MM-Pred 513 (its linear
    layer), or 1,025 with two [CLS] tokens.

    Attributes:
        encoder_layers: Self-attention layers by default.
        decoder_layers: Cross-attention layers by default; 0 for a style without them.
        encoders: Names of the encoders.
        decoders: Names of the decoders.
        queries: c, the number of [CLS] tokens.
        two_sided: Whether MM-Adapter compares its two [CLS] tokens, one of each modality, with each
            other rather than [CLS] with the text.
    """

    encoder_layers: ClassVar[int] = 1
    decoder_layers: ClassVar[int] = 1
    encoders: ClassVar[tuple[str, ...]]
    decoders: ClassVar[tuple[str, ...]]
    queries: int = 1
    two_sided: ClassVar[bool] = False

    def build(
        self, factory: LayerFactory, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes the layers and returns them by name."""
        # The adapter owns the layers; the style only calls them by name.
        layers: dict[str, nn.Module] = {}
        for name in self.encoders:
            layers[name] = factory.encoder(encoder_layers)
        for name in self.decoders:
            layers[name] = factory.decoder(decoder_layers)
        vars(self).update(layers)
        return layers

    @abstractmethod
    def prepare_image(self, image: Tokens, query: ClsTokens) -> PooledTokens:
        """Computes what needs images only; `query` are the [CLS] tokens."""

    @abstractmethod
    def prepare_text(self, text: Tokens, query: ClsTokens) -> PooledTokens:
        """Computes what needs texts only; `query` are the [CLS] tokens."""

    @abstractmethod
    def fuse(self, image: PooledTokens, text: PooledTokens, query: ClsTokens) -> ClsOutputs:
        """Returns the [CLS] outputs of P prepared pairs."""

    @abstractmethod
    def tokens_per_layer(self, image_tokens: int, text_tokens: int) -> list[int]:
        """How many tokens of a pair each layer of `fuse` computes, to estimate memory."""


class JointEncoderStyle(FusionStyle):
    """A style whose first layer sees image and text together: W I and Q are packed for it."""

    encoder: Encoder

    @override
    def prepare_image(self, image: Tokens, query: ClsTokens) -> PooledTokens:
        packed = self.encoder.pack(image.values)
        return tokens_only(image.with_values(packed))

    @override
    def prepare_text(self, text: Tokens, query: ClsTokens) -> PooledTokens:
        packed = self.encoder.pack(text.values)
        return tokens_only(text.with_values(packed))

    def reading(self, image: Tokens, text: Tokens, heads: int) -> Float[Tensor, "P words patches"]:
        r"""How much each text token attends to each patch in the first layer of the encoder.

        Its attention $\mathrm{softmax}(q k^\top / \sqrt{w / h})$ over all image and text tokens,
        FLAVA's [CLS] left out, is averaged over the h heads. The part on the patches is divided by
        its sum. Later layers mix words and patches further.
        """
        # Packed tokens are a query, a key, a value and the token itself, side by side.
        query, _, _, _ = text.values.chunk(4, dim=2)
        packed, mask = side_by_side(image, text)
        _, key, _, _ = packed.chunk(4, dim=2)
        # (P, heads, tokens, width of a head)
        query = split_heads(query, heads)
        key = split_heads(key, heads)
        width = query.shape[3]
        products = query @ key.mT
        logits = products / math.sqrt(width)
        # The softmax runs over words and patches, as in the encoder; only then are patches cut out.
        if mask is not None:
            padding = ~mask[:, None, None]
            logits = logits.masked_fill(padding, -torch.inf)
        weights = logits.softmax(dim=3).mean(dim=1)
        read = weights[:, :, : image.token_count]
        return read / read.sum(dim=2, keepdim=True)


def tokens_only(tokens: Tokens) -> PooledTokens:
    """Prepared tokens without a vector beside them."""
    nothing = tokens.values.new_zeros(len(tokens), 0)
    return PooledTokens(nothing, tokens)


def side_by_side(*parts: Tokens) -> tuple[Float[Tensor, "P t w"], Bool[Tensor, "P t"] | None]:
    """Tokens one after the other and their mask: None without padding, which is faster.

    Example:
        >>> side_by_side(Tokens.full(torch.ones(2, 3, 4)), Tokens.full(torch.ones(2, 1, 4)))[1]
    """
    values = torch.cat([part.values for part in parts], dim=1)
    # Lengths are known on the CPU, so that no GPU is waited for.
    for part in parts:
        is_full = part.lengths == part.token_count
        if not is_full.all():
            return values, torch.cat([part.mask for part in parts], dim=1)
    return values, None
