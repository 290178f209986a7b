"""BLIP with its contrastive and its matching head."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import BlipForImageTextRetrieval

from vlmtune.backbones.base import Fusion
from vlmtune.backbones.hf_dual import HFDualEncoder
from vlmtune.backbones.hf_loading import Loaded
from vlmtune.backbones.hf_towers import (
    HFImageTower,
    HFTextTower,
    HFTokenizer,
    first_token,
    log_odds,
    unseen,
)
from vlmtune.backbones.staging import masked, parameters_of, unmasked
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Tokens


class Blip(HFDualEncoder):
    """BLIP (Li et al. 2022, arXiv 2201.12086) as `transformers.BlipForImageTextRetrieval` has it.

    ITC: embeddings are the projected class tokens of the vision encoder and of the text encoder
    without its cross-attention. These checkpoints do not hold the temperature learned for them;
    `logit_scale` is the value the config says it started from.

    ITM: the fusion is the text encoder with cross-attention to all tokens of the image, and a head
    of two classes. The vision encoder runs once per image, a caption is tokenized and embedded
    once, and the text encoder runs once per pair. Arguments are those of `HFBackbone`.
    """

    kind = BlipForImageTextRetrieval
    attention = "eager"  # the only one the library has for BLIP's text encoder

    def check(self, model: str) -> None:
        """Refuses text encoders that cannot look at an image.

        Raises:
            UserError: The text encoder was configured without cross-attention.
        """
        if not hasattr(self.model.text_encoder.encoder.layer[0], "crossattention"):
            raise UserError(
                f"expected a text encoder with cross-attention, got {model} with is_decoder false "
                "in its text_config: use a checkpoint for image-text retrieval"
            )

    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of the model."""
        vision, text, model = self.model.vision_model, self.model.text_encoder, self.model
        image_tower = BlipImageTower(
            embed=partial(_embed, vision),
            blocks=vision.encoder.layers,
            norm=vision.post_layernorm,
            head=partial(first_token, model.vision_proj),
            owners=(vision.post_layernorm, model.vision_proj),
            special=1,
            dtype=self._dtype,
        )
        table = text.embeddings.position_embeddings
        text_tower = BlipTextTower(
            text.embeddings,
            tokenizer=HFTokenizer(loaded.tokenizer, table.num_embeddings),
            embedding=text.embeddings.word_embeddings,
            table=table,
            blocks=text.encoder.layer,
            norm=nn.Identity(),
            projection=model.text_proj,
            dtype=self._dtype,
        )
        return image_tower, text_tower

    def assemble(self, loaded: Loaded) -> None:
        """Makes the towers and the fusion."""
        super().assemble(loaded)
        self.fusion = BlipFusion(self.model, self._image, self._text, self._dtype)

    def temperature(self) -> tuple[float, float]:
        """Returns the factor on cosines that training started from, and 0."""
        return math.exp(self.model.config.logit_scale_init_value), 0.0


class BlipImageTower(HFImageTower):
    """A vision transformer whose blocks take no mask."""

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        tokens = state.values.to(self._dtype)
        for block in self.blocks[first:stop]:
            tokens = block(tokens)
        return unmasked(tokens)


class BlipTextTower(HFTextTower):
    """BERT's encoder without cross-attention; the class token is pooled."""

    def __init__(self, embeddings: nn.Module, **parts: Any) -> None:
        super().__init__(**parts)
        self._embeddings: Any = embeddings

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last, without the cross-attention that captions alone do not use."""
        return [
            nn.ModuleList([layer.attention, layer.intermediate, layer.output])  # type: ignore[list-item]
            for layer in self._blocks
        ]

    def embed(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Adds positions and applies BERT's first norm."""
        return self._embeddings.dropout(self._embeddings.LayerNorm(super().embed(tokens)))

    def attention(self, mask: Bool[Tensor, "n t"]) -> dict[str, Any]:
        """Hides padding from all tokens."""
        return {"attention_mask": unseen(mask, self._dtype)}

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        tokens, mask = state.values, state.mask
        tokens = tokens.to(self._dtype)
        for layer in self._blocks[first:stop]:
            tokens = layer(tokens, None, **self.attention(mask))
        return masked(tokens, mask)

    def pool(
        self, tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]
    ) -> Float[Tensor, "n w"]:
        """The class token."""
        del mask
        return tokens[:, 0]


class BlipFusion(Fusion):
    """The text encoder with cross-attention to an image.

    Args:
        model: The whole model.
        image: Its image tower.
        text: Its text tower.
        dtype: Type of the weights, in which it computes.
    """

    image_input, text_input = FeatureSpec("state", -1), FeatureSpec("words")
    reuses_image = True  # of cross-attention's keys and values

    def __init__(
        self, model: Any, image: HFImageTower, text: HFTextTower, dtype: torch.dtype
    ) -> None:
        self._layers, self._head = model.text_encoder.encoder.layer, model.itm_head
        self._image, self._text, self._dtype = image, text, dtype

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self._layers)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """The matching head."""
        return parameters_of(self._head)

    def prepare_image(self, image: Tokens) -> Tokens:
        """Applies the vision encoder's final norm."""
        return self._image.norm(image)

    def prepare_text(self, text: Tokens) -> Tokens:
        """Adds positions to words."""
        return self._text.start(text)

    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """Log-odds of the matching head.

        With a single row of `image`, keys and values of the image are computed once for all P.
        """
        tokens, mask = text.values, text.mask
        tokens, seen = tokens.to(self._dtype), image.values.to(self._dtype)
        for layer in self._layers:
            tokens = layer(tokens, seen, attention_mask=unseen(mask, self._dtype))
        return log_odds(self._head(tokens[:, 0]))


def _embed(vision: Any, pixels: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n t w"]:
    size = vision.embeddings.image_size
    if tuple(pixels.shape[2:]) != (size, size):  # the library would cut its positions
        raise ValueError(f"the model takes {size} x {size}")
    return vision.embeddings(pixels)
