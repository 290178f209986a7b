"""BridgeTower with its matching head and, if present, its contrastive heads.

In: images and captions. Out: log-odds of pairs, and embeddings if the checkpoint has them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import BridgeTowerConfig, BridgeTowerForImageAndTextRetrieval
from transformers.models.bridgetower.modeling_bridgetower import BridgeTowerContrastiveHead
from typing_extensions import override

from vlmtune.backbones.base import Abilities, Fusion
from vlmtune.backbones.hf.backbone import HFDualEncoder
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import (
    HFImageTower,
    HFTextTower,
    bert_tower,
    hide_padding,
    log_odds,
    through,
)
from vlmtune.backbones.staging import States, parameters_of, unmasked
from vlmtune.types import FeatureSpec, Pixels, Tokens

IMAGE = 1
TEXT = 0
"""Rows of the table of modality embeddings."""


class BridgeTowerNetwork(BridgeTowerForImageAndTextRetrieval):
    """The library's matching model, with the contrastive heads of its contrastive model."""

    def __init__(self, config: BridgeTowerConfig) -> None:
        super().__init__(config)
        # Many checkpoints have the matching head alone.
        self.itc_image_head = self.itc_text_head = self.logit_scale = None
        if width := getattr(config, "contrastive_hidden_size", None):
            self.itc_image_head = BridgeTowerContrastiveHead(config.hidden_size, width)
            self.itc_text_head = BridgeTowerContrastiveHead(config.hidden_size, width)
            self.logit_scale = nn.Parameter(torch.tensor(0.0))
        self.post_init()


class BridgeTower(HFDualEncoder):
    """BridgeTower (Xu et al. 2023, arXiv 2206.08657) as `transformers` computes it.

    ITM: `BridgeTowerForImageAndTextRetrieval`. The fusion has K layers; each of the last K states
    of the two towers enters one of them through a bridge. The features are the first of those
    states, computed once per image and caption; the K - 1 blocks after it run again for each batch
    of pairs, and the fusion runs once per pair. A checkpoint without the matching head has no
    fusion.

    ITC: the class tokens of the towers through the heads of `BridgeTowerForContrastiveLearning`.
    Checkpoints without those heads have no pooled embeddings and no towers. The third head,
    which embeds a pair, is left out. It takes the arguments of `HFBackbone`.
    """

    kind = BridgeTowerNetwork
    abilities = Abilities(
        embeddings="with its contrastive heads",
        tokens=True,
        image_tower="with its contrastive heads",
        text_tower="with its contrastive heads",
        matching="with its matching head",
    )
    attention = "eager"  # the only one the library has for BridgeTower
    optional = ("itm_score", "itc_image_head", "itc_text_head", "logit_scale")

    @override
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        model = self.model.bridgetower
        visual = model.vision_model.visual
        text = model.text_model
        image_tower = BridgeImageTower(
            embed=partial(_embed, visual),
            # The library never runs image blocks beyond the number of text blocks.
            block_list=visual.transformer.resblocks[: len(text.encoder.layer)],
            final_norm=visual.ln_post,
            # A checkpoint without the contrastive heads embeds nothing.
            head=self.model.itc_image_head or nn.Identity(),
            dtype=self._dtype,
            fusion=model,
        )
        text_head = self.model.itc_text_head or nn.Identity()
        text_tower = bert_tower(
            loaded.tokenizer,
            text,
            text_head,
            self._dtype,
            first_position=text.embeddings.padding_idx + 1,
        )
        return image_tower, text_tower

    @override
    def assemble(self, loaded: Loaded) -> None:
        super().assemble(loaded)
        if loaded.absent & set(self.optional[1:]):
            self.no_pooled = "its checkpoint has no contrastive heads (itc_image_head and others)"
        # Else there is a list of transforms, and the heads need one.
        elif not self.model.config.share_cross_modal_transformer_layers:
            self.no_pooled = "its contrastive heads need share_cross_modal_transformer_layers"
        if self.no_pooled is not None:  # a tower ends in embeddings
            self.image_tower = self.text_tower = None
        if self.model.itm_score is None:
            self.no_fusion = "its checkpoint has no matching head (itm_score)"
        else:
            self.fusion = BridgeFusion(self.model, self._image, self._text, self._dtype)

    @override
    def temperature(self) -> tuple[float, float]:
        return (1.0, 0.0) if self.no_pooled is not None else super().temperature()


@dataclass(eq=False)
class BridgeImageTower(HFImageTower):
    """A vision transformer whose blocks take tokens before rows.

    The image embedding goes through layers of the fusion before its head.
    """

    fusion: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = (self.fusion.cross_modal_image_transform, self.fusion.token_type_embeddings)
        self.tail = parameters_of(self.final_norm, *layers, self.head)

    @override
    def unprojected(self, state: Tokens) -> None:
        return None

    @override
    def finish(self, state: Tokens) -> Float[Tensor, "n d"]:
        tokens = self.norm(state).values
        token = tokens[:, 0].to(self.dtype)
        # As in pre-training, where the contrastive head read what the fusion gets.
        kind = self.fusion.token_type_embeddings.weight[IMAGE]
        transformed = self.fusion.cross_modal_image_transform(token) + kind
        return self.head(transformed).float()

    @override
    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        # n x t x w becomes t x n x w for the blocks, and back.
        tokens = state.values.to(self.dtype).transpose(0, 1)
        tokens = through(self.blocks[first:stop], tokens, None)
        return unmasked(tokens.transpose(0, 1))


class BridgeFusion(Fusion):
    """K layers over both modalities, each of which gets one of the last K states of both towers.

    Prepared tokens are those K states side by side, ready for the bridges: K times as wide as the
    fusion.
    """

    def __init__(
        self, model: Any, image: HFImageTower, text: HFTextTower, dtype: torch.dtype
    ) -> None:
        parts = model.bridgetower
        self._model = parts
        self._head = model.itm_score
        self._dtype = dtype
        self._image = image
        self._text = text
        self._text_layers = parts.cross_modal_text_layers
        self._image_layers = parts.cross_modal_image_layers
        self._depth = len(self._text_layers)
        self.image_input = self.text_input = FeatureSpec("state", -self._depth)
        # A block is a layer of each modality, and the bridges before it; the first has none.
        self.blocks = []
        for i in range(self._depth):
            block = [self._text_layers[i], self._image_layers[i]]
            if i > 0:
                links = (parts.cross_modal_text_link_tower, parts.cross_modal_image_link_tower)
                block = [*(link[i - 1] for link in links), *block]
            self.blocks.append(nn.ModuleList(block))
        poolers = (parts.cross_modal_text_pooler, parts.cross_modal_image_pooler)
        self.tail = parameters_of(*poolers, self._head)

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        transform = self._model.cross_modal_image_transform
        norm = self._model.cross_modal_image_layernorm
        normed = map(self._image.norm, self._states(self._image, image))
        states = [state.values for state in normed]
        return unmasked(self._side_by_side(states, transform, norm, IMAGE))

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        transform = self._model.cross_modal_text_transform
        norm = self._model.cross_modal_text_layernorm
        states = [state.values for state in self._states(self._text, text)]
        values = self._side_by_side(states, transform, norm, TEXT)
        return text.masked(values)

    def _states(self, tower: HFImageTower | HFTextTower, state: Tokens) -> list[Tokens]:
        """The last K states of a tower, from the first of them."""
        states = [state]
        for i in range(tower.layers - self._depth + 1, tower.layers):
            states.append(tower.run(states[-1], i, i + 1))
        return states

    def _side_by_side(
        self, states: list[Tensor], transform: Any, norm: nn.Module, modality: int
    ) -> Float[Tensor, "n t wide"]:
        """Brings states to the width of the fusion; the first has a norm in place of a bridge."""
        kind = self._model.token_type_embeddings.weight[modality]
        ready = []
        for i, state in enumerate(states):
            # A checkpoint has one transform for all states, or one for each.
            into_fusion = transform[i] if isinstance(transform, nn.ModuleList) else transform
            transformed = into_fusion(state.to(self._dtype))
            ready.append(transformed + kind)
        ready[0] = norm(ready[0])
        return torch.cat(ready, dim=-1)

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        outputs = self.cls_outputs(image, text)
        return log_odds(self._head(outputs))

    @override
    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        model = self._model
        mask = hide_padding(text.mask, self._dtype)
        # The K states that were prepared side by side.
        image_values = image.values.to(self._dtype)
        text_values = text.values.to(self._dtype)
        image_states = image_values.chunk(self._depth, dim=-1)
        text_states = text_values.chunk(self._depth, dim=-1)
        words = text_states[0]
        # One image may stand for all pairs.
        patches = image_states[0].expand(len(text), -1, -1)
        for i in range(self._depth):
            # The first states come without a bridge; `_side_by_side` gave them a norm.
            if i > 0:
                text_bridge = model.cross_modal_text_link_tower[i - 1]
                image_bridge = model.cross_modal_image_link_tower[i - 1]
                words = text_bridge(text_states[i], words, mask)
                patches = image_bridge(image_states[i], patches, None)
            # Both layers read what the other modality was before this layer.
            text_output = self._text_layers[i](words, patches, attention_mask=mask)
            image_output = self._image_layers[i](patches, words, encoder_attention_mask=mask)
            words = text_output[0]
            patches = image_output[0]
        return model.get_cls_features(words, patches)


def _embed(visual: Any, pixels: Pixels) -> States:
    # The library has tokens before rows here.
    return visual.forward_pre(pixels).transpose(0, 1)
