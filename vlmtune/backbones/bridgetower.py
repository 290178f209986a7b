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
from vlmtune.backbones.staging import masked, parameters_of, unmasked
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Tokens

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
    Checkpoints without those heads have no pooled embeddings and give no towers. The third head,
    which embeds a pair, is left out. Arguments are those of `HFBackbone`.
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
        embed = BridgeImageHead(model, self.model.itc_image_head)
        image_tower = BridgeImageTower(
            embed=partial(_embed, visual),
            blocks=visual.transformer.resblocks[: len(text.encoder.layer)],
            norm=visual.ln_post,
            head=embed,
            owners=(visual.ln_post, *embed.owners),
            special=1,
            dtype=self._dtype,
        )
        text_tower = BridgeTextTower(
            text.embeddings,
            tokenizer=HFTokenizer(loaded.tokenizer, _positions(text.embeddings)),
            embedding=text.embeddings.word_embeddings,
            table=text.embeddings.position_embeddings,
            blocks=text.encoder.layer,
            norm=nn.Identity(),
            projection=nn.Identity() if (head := self.model.itc_text_head) is None else head,
            dtype=self._dtype,
        )
        return image_tower, text_tower

    def assemble(self, loaded: Loaded) -> None:
        """Makes the towers, and the fusion where there is a matching head."""
        super().assemble(loaded)
        if loaded.absent & set(self.optional[1:]):
            self.no_pooled = "its checkpoint has no contrastive heads (itc_image_head and others)"
        elif not self.model.config.share_cross_modal_transformer_layers:
            self.no_pooled = "its contrastive heads need share_cross_modal_transformer_layers"
        if self.no_pooled is not None:  # towers end in embeddings
            self.image_tower = self.text_tower = None
        if self.model.itm_score is None:
            self.no_fusion = "its checkpoint has no matching head (itm_score)"
        else:
            self.fusion = BridgeFusion(self.model, self._image, self._text, self._dtype)

    def temperature(self) -> tuple[float, float]:
        """Returns the factor on cosines the model was trained with, 1 without them, and 0."""
        if self.no_pooled is not None:
            return 1.0, 0.0
        return float(self.model.logit_scale.detach().float().exp()), 0.0


class BridgeImageHead:
    """From an image's tokens after the final norm to its embedding.

    Args:
        model: The model without heads.
        head: The contrastive head, or None.

    Attributes:
        owners: The modules it uses.
    """

    def __init__(self, model: Any, head: nn.Module | None) -> None:
        self._head, self._types = head, model.token_type_embeddings
        self._transform = model.cross_modal_image_transform
        self.owners = () if head is None else (self._transform, self._types, head)

    def __call__(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n d"]:
        """Returns the embeddings."""
        assert self._head is not None
        return self._head(self._transform(tokens[:, 0]) + self._types.weight[IMAGE])


class BridgeImageTower(HFImageTower):
    """A vision transformer whose blocks want tokens first and rows second."""

    def run(self, state: Tokens, first: int, stop: int) -> Tokens:
        """Runs blocks `first` to `stop - 1`."""
        tokens = state.values.to(self._dtype).transpose(0, 1)
        return unmasked(through(self.blocks[first:stop], tokens, None).transpose(0, 1))


class BridgeTextTower(HFTextTower):
    """RoBERTa: every token sees all but padding; the first token is pooled."""

    def __init__(self, embeddings: nn.Module, **parts: Any) -> None:
        super().__init__(**parts)
        self._embeddings: Any = embeddings
        self.positions = _positions(embeddings)

    def embed(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Adds the one type there is and positions, counted from behind the padding's."""
        embeddings, first = self._embeddings, self._embeddings.padding_idx + 1
        places = self.table.weight[first : first + tokens.shape[1]]
        typed = tokens + embeddings.token_type_embeddings.weight[0] + places
        return embeddings.dropout(embeddings.LayerNorm(typed))

    def attention(self, mask: Bool[Tensor, "n t"]) -> dict[str, Any]:
        """Hides padding from all tokens."""
        return {"attention_mask": unseen(mask, self._dtype)}

    def pool(
        self, tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]
    ) -> Float[Tensor, "n w"]:
        """The first token."""
        del mask
        return tokens[:, 0]


class BridgeFusion(Fusion):
    """K layers over both modalities, each of which gets one of the last K states of both towers.

    What is prepared of an image or a caption are those K states, ready for the bridges, side by
    side: tokens are K times as wide as the fusion.

    Args:
        model: The whole model.
        image: Its image tower.
        text: Its text tower.
        dtype: Type of the weights, in which it computes.
    """

    def __init__(
        self, model: Any, image: HFImageTower, text: HFTextTower, dtype: torch.dtype
    ) -> None:
        self._model, self._head, self._dtype = model.bridgetower, model.itm_score, dtype
        self._image, self._text = image, text
        self._depth = len(self._model.cross_modal_text_layers)
        self.image_input = self.text_input = FeatureSpec("state", -self._depth)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The layers for text and for image, and the bridges that lead to them."""
        model = self._model
        texts, images = model.cross_modal_text_layers, model.cross_modal_image_layers
        left, right = model.cross_modal_text_link_tower, model.cross_modal_image_link_tower
        bridges = [(), *zip(left, right, strict=True)]
        return [
            nn.ModuleList([*bridges[i], texts[i], images[i]])  # type: ignore[list-item]
            for i in range(self._depth)
        ]

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Poolers and matching head."""
        poolers = (self._model.cross_modal_text_pooler, self._model.cross_modal_image_pooler)
        return parameters_of(*poolers, self._head)

    def prepare_image(self, image: Tokens) -> Tokens:
        """Runs the image tower to its end and readies its states for the bridges."""
        model = self._model
        transform, norm = model.cross_modal_image_transform, model.cross_modal_image_layernorm
        states = [self._image.norm(state).values for state in self._states(self._image, image)]
        return unmasked(self._side_by_side(states, transform, norm, IMAGE))

    def prepare_text(self, text: Tokens) -> Tokens:
        """Runs the text tower to its end and readies its states for the bridges."""
        model = self._model
        transform, norm = model.cross_modal_text_transform, model.cross_modal_text_layernorm
        states = [state.values for state in self._states(self._text, text)]
        return masked(self._side_by_side(states, transform, norm, TEXT), text.mask)

    def _states(self, tower: HFImageTower | HFTextTower, state: Tokens) -> list[Tokens]:
        """The last K states of a tower, of which the first is given."""
        states = [state]
        for i in range(tower.layers - self._depth + 1, tower.layers):
            states.append(tower.run(states[-1], i, i + 1))
        return states

    def _side_by_side(
        self, states: list[Tensor], transform: Any, norm: nn.Module, modality: int
    ) -> Float[Tensor, "n t wide"]:
        """Brings states to the width of the fusion; the first has no bridge but a norm."""
        kind = self._model.token_type_embeddings.weight[modality]
        each = transform if isinstance(transform, nn.ModuleList) else [transform] * self._depth
        ready = [f(x.to(self._dtype)) + kind for f, x in zip(each, states, strict=True)]
        return torch.cat([norm(ready[0]), *ready[1:]], dim=-1)

    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """Log-odds of the matching head."""
        model, mask = self._model, unseen(text.mask, self._dtype)
        image_states = image.values.to(self._dtype).chunk(self._depth, dim=-1)
        text_states = text.values.to(self._dtype).chunk(self._depth, dim=-1)
        left, right = text_states[0], image_states[0].expand(len(text), -1, -1)
        for i in range(self._depth):
            if i > 0:
                left = model.cross_modal_text_link_tower[i - 1](text_states[i], left, mask)
                right = model.cross_modal_image_link_tower[i - 1](image_states[i], right, None)
            left, right = (
                model.cross_modal_text_layers[i](left, right, attention_mask=mask)[0],
                model.cross_modal_image_layers[i](right, left, encoder_attention_mask=mask)[0],
            )
        return log_odds(self._head(model.get_cls_features(left, right)))


def _embed(visual: Any, pixels: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n t w"]:
    return visual.forward_pre(pixels).transpose(0, 1)


def _positions(embeddings: Any) -> int:
    """Longest caption: positions up to that of the padding token are for no word."""
    return embeddings.position_embeddings.num_embeddings - embeddings.padding_idx - 1
