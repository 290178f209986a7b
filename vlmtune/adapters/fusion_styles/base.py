"""What a fusion style is: which layers image and text tokens go through together."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vlmtune.adapters.fusion_styles.layers import Blocks
from vlmtune.config import Configured
from vlmtune.types import PooledTokens, Tokens


class FusionStyle(Configured, ABC):
    """Turns image tokens and text tokens of one width into the output of one or two [CLS] tokens.

    A plain object and not a module: the adapter owns the layers it makes, so that weights keep one
    name each. All of `prepare_image` and `prepare_text` is computed once per image and once per
    text, `fuse` once per pair. Masks are True where a token may be seen; what is masked never
    changes an output.

    Attributes:
        encoder_layers: Self-attention layers where the adapter is told no number.
        decoder_layers: Cross-attention layers where the adapter is told no number; 0 where the
            style has none.
        queries: c, its [CLS] tokens.
    """

    encoder_layers: ClassVar[int] = 1
    decoder_layers: ClassVar[int] = 1
    queries: ClassVar[int] = 1

    @abstractmethod
    def build(
        self, blocks: Blocks, encoder_layers: int, decoder_layers: int
    ) -> dict[str, nn.Module]:
        """Makes the layers and returns them by name, for the adapter to own."""

    @abstractmethod
    def prepare_image(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """The part of the computation that needs images only, as `pooled`, `tokens` and `mask`."""

    @abstractmethod
    def prepare_text(
        self,
        tokens: Float[Tensor, "n t w"],
        mask: Bool[Tensor, "n t"],
        query: Float[Tensor, "1 c w"],
    ) -> PooledTokens:
        """The part of the computation that needs texts only, as `pooled`, `tokens` and `mask`."""

    @abstractmethod
    def fuse(
        self, image: PooledTokens, text: PooledTokens, query: Float[Tensor, "1 c w"]
    ) -> Float[Tensor, "P c w"]:
        """The [CLS] outputs of P prepared pairs."""

    @abstractmethod
    def rows(self, image_tokens: int, text_tokens: int) -> list[int]:
        """How many tokens of one pair each layer of `fuse` computes, for estimates of memory."""


def seen(*masks: Bool[Tensor, "P _"]) -> Bool[Tensor, "P t"] | None:
    """Masks side by side, or None where nothing is hidden: attention without a mask is faster.

    Example:
        >>> seen(torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 1, dtype=torch.bool)) is None
        True
    """
    mask = torch.cat(masks, dim=1)
    return None if bool(mask.all()) else mask


def with_cls(mask: Bool[Tensor, "P t"]) -> Bool[Tensor, "P t1"]:
    """The mask with a [CLS] token, which is always seen, before its tokens.

    Example:
        >>> with_cls(torch.tensor([[True, False]])).tolist()
        [[True, True, False]]
    """
    return nn.functional.pad(mask, (1, 0), value=True)


def parts(prepared: PooledTokens) -> tuple[Float[Tensor, "n t w"], Bool[Tensor, "n t"]]:
    """Values and mask of prepared tokens."""
    return prepared.tokens.values, prepared.tokens.mask


def tokens_only(values: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]) -> PooledTokens:
    """Prepared tokens without a vector beside them."""
    return PooledTokens(values.new_zeros(len(values), 0), Tokens(values, mask))
