"""BLIP with its contrastive and its matching head.

In: images and captions. Out: embeddings, and log-odds that a caption is true of an image.
"""

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import BlipForImageTextRetrieval
from typing_extensions import override

from vlmtune.backbones.base import Fusion
from vlmtune.backbones.hf.backbone import HFDualEncoder
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import (
    BertTextTower,
    HFImageTower,
    HFTextTower,
    bert_tower,
    hide_padding,
    log_odds,
    vision_tower,
)
from vlmtune.backbones.staging import States, parameters_of, unmasked
from vlmtune.types import FeatureSpec, Pixels, Tokens


class Blip(HFDualEncoder):
    """BLIP (Li et al. 2022, arXiv 2201.12086) as `transformers.BlipForImageTextRetrieval` has it.

    ITC: embeddings are the projected class tokens of the vision encoder and of the text encoder
    without its cross-attention. The checkpoints lack the learned temperature; `logit_scale` is its
    initial value in the config.

    ITM: the fusion is the text encoder with cross-attention to all tokens of the image, and a head
    of two classes. The vision encoder runs once per image, a caption is tokenized and embedded
    once, and the text encoder runs once per pair. It takes the arguments of `HFBackbone`.
    """

    kind = BlipForImageTextRetrieval
    abilities = HFDualEncoder.abilities._replace(matching=True)
    attention = "eager"  # the only one the library has for BLIP's text encoder

    @override
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        vision = self.model.vision_model
        text = self.model.text_encoder
        model = self.model
        embed = partial(embed_pixels, vision)
        image_tower = vision_tower(
            vision, model.vision_proj, self._dtype, embed, kind=BlipImageTower
        )
        text_tower = bert_tower(
            loaded.tokenizer, text, model.text_proj, self._dtype, kind=BlipTextTower
        )
        return image_tower, text_tower

    @override
    def assemble(self, loaded: Loaded) -> None:
        super().assemble(loaded)
        self.fusion = BlipFusion(self.model, self._image, self._text, self._dtype)

    @override
    def temperature(self) -> tuple[float, float]:
        # The checkpoints lack what the temperature became in training.
        return math.exp(self.model.config.logit_scale_init_value), 0.0


class BlipImageTower(HFImageTower):
    """A vision transformer whose blocks take no mask."""

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        tokens = state.values.to(self.dtype)
        for block in self.blocks[first:stop]:
            tokens = block(tokens)
        return unmasked(tokens)


class BlipTextTower(BertTextTower):
    """BERT's encoder without cross-attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.blocks = [
            # Cross-attention belongs to the fusion: a caption alone does not run it.
            nn.ModuleList([layer.attention, layer.intermediate, layer.output])  # type: ignore[list-item]
            for layer in self.block_list
        ]


class BlipFusion(Fusion):
    """The text encoder with cross-attention to an image."""

    image_input = FeatureSpec("state", -1)
    text_input = FeatureSpec("words")
    reuses_image = True  # its keys and values of cross-attention

    def __init__(
        self, model: Any, image: HFImageTower, text: HFTextTower, dtype: torch.dtype
    ) -> None:
        self._layers = model.text_encoder.encoder.layer
        self._head = model.itm_head
        self._image = image
        self._text = text
        self._dtype = dtype
        self.blocks = list(self._layers)
        self.tail = parameters_of(self._head)

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        return self._image.norm(image)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        return self._text.start(text)

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        outputs = self.cls_outputs(image, text)
        return log_odds(self._head(outputs))

    @override
    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        tokens = text.values.to(self._dtype)
        patches = image.values.to(self._dtype)
        mask = hide_padding(text.mask, self._dtype)
        for layer in self._layers:
            tokens = layer(tokens, patches, attention_mask=mask)
        return tokens[:, 0]


def embed_pixels(vision: Any, pixels: Pixels) -> States:
    """Class token and patches with their positions; another image size is a `ValueError`."""
    size = vision.embeddings.image_size
    if tuple(pixels.shape[2:]) != (size, size):  # the library would cut its positions
        raise ValueError(f"the model takes {size} x {size}")
    return vision.embeddings(pixels)
