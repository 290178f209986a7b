"""BridgeTower with its matching head and, where it has them, its contrastive heads."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import BridgeTowerConfig, BridgeTowerForImageAndTextRetrieval
from transformers.models.bridgetower.modeling_bridgetower import BridgeTowerContrastiveHead

from vlmtune.backbones.base import Fusion
from vlmtune.backbones.hf_dual import HFDualEncoder
from vlmtune.backbones.hf_loading import Loaded
from vlmtune.backbones.hf_towers import (
    HFImageTower,
    HFTextTower,
    HFTokenizer,
    log_odds,
    through,
    unseen,
)
from vlmtune.backbones.staging import masked, parameters_of, parts, whole
from vlmtune.errors import UserError
from vlmtune.types import Features, Reads

IMAGE, TEXT = 1, 0
"""Rows of the table of modality embeddings."""


class BridgeTowerNetwork(BridgeTowerForImageAndTextRetrieval):
    """The library's matching model, with the contrastive heads of its contrastive model.

    Args:
        config: The model's config.
    """

    def __init__(self, config: BridgeTowerConfig) -> None:
        super().__init__(config)
        self.itc_image_head = self.itc_text_head = self.logit_scale = None
        if width := getattr(config, "contrastive_hidden_size", None):
            self.itc_image_head = BridgeTowerContrastiveHead(config.hidden_size, width)
            self.itc_text_head = BridgeTowerContrastiveHead(config.hidden_size, width)
            self.logit_scale = nn.Parameter(torch.tensor(0.0))
        self.post_init()


class BridgeTower(HFDualEncoder):
    """BridgeTower (Xu et al. 2023, arXiv 2206.08657) as `transformers` computes it.

    ITM: `BridgeTowerForImageAndTextRetrieval`. The fusion has K layers; each of the last K states
    of the two towers enters one of them through a bridge. Both towers run once per image and
    caption: read and stored is the first of those states, the K - 1 blocks behind it run again for
    each batch of pairs, and the fusion runs once per pair. A checkpoint without the matching head
    has no fusion.

    ITC: the class tokens of the towers through the heads of `BridgeTowerForContrastiveLearning`.
    Checkpoints without those heads have no pooled embeddings. Its third head, which embeds a pair,
    is left out. Arguments are those of `HFBackbone`.
    """

    kind = BridgeTowerNetwork
    attention = "eager"  # the only one the library has for BridgeTower
    optional = ("itm_score", "itc_image_head", "itc_text_head", "logit_scale")

    def check(self, model: str) -> None:
        """Refuses what the library loads and cannot run.

        Raises:
            UserError: The image tower is too short, or bridges are shared.
        """
        parts = self.model.bridgetower
        deep, needed = (
            len(parts.vision_model.visual.transformer.resblocks),
            len(parts.text_model.encoder.layer),
        )
        if deep < needed or parts.config.share_link_tower_layers:
            raise UserError(
                f"expected an image tower of at least {needed} blocks and bridges that are not "
                f"shared, got {deep} blocks and share_link_tower_layers "
                f"{parts.config.share_link_tower_layers} in {model}: use another checkpoint"
            )

    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of the model."""
        model = self.model.bridgetower
        visual, text = model.vision_model.visual, model.text_model
        image_transform, text_transform = _last(model.cross_modal_image_transform), text.embeddings
        image_tower = BridgeImageTower(
            embed=partial(_embed, visual),
            blocks=visual.transformer.resblocks[: len(text.encoder.layer)],
            norm=visual.ln_post,
            head=partial(
                _embedding, image_transform, model.token_type_embeddings, self.model.itc_image_head
            ),
            owners=(visual.ln_post, image_transform, self.model.itc_image_head),
            special=1,
            dtype=self._dtype,
        )
        text_tower = BridgeTextTower(
            text_transform,
            tokenizer=HFTokenizer(loaded.tokenizer, _positions(text.embeddings)),
            embedding=text.embeddings.word_embeddings,
            table=text.embeddings.position_embeddings,
            blocks=text.encoder.layer,
            norm=nn.Identity(),
            projection=self.model.itc_text_head,
            dtype=self._dtype,
        )
        return image_tower, text_tower

    def assemble(self, loaded: Loaded) -> None:
        """Makes the towers, and the fusion where there is a matching head."""
        super().assemble(loaded)
        if loaded.absent & set(self.optional[1:]):
            self.no_pooled = "its checkpoint has no contrastive heads (itc_image_head, ...)"
        if self.model.itm_score is None:
            self.no_fusion = "its checkpoint has no matching head (itm_score)"
        else:
            self.fusion = BridgeFusion(self.model, self._image, self._text, self._dtype)

    def temperature(self) -> tuple[float, float]:
        """Returns the factor on cosines the model was trained with, 1 without them, and 0."""
        if self.no_pooled is not None:
            return 1.0, 0.0
        return float(self.model.logit_scale.detach().float().exp()), 0.0
