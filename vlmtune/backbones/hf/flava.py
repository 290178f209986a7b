"""FLAVA as a dual encoder, and as a fusion encoder if it has its matching head.

In: images and captions. Out: embeddings, and log-odds of pairs if the checkpoint has the head.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import FlavaConfig, FlavaModel, FlavaPreTrainedModel
from transformers.models.flava.modeling_flava import FlavaITMHead
from typing_extensions import override

from vlmtune.backbones.base import Fusion
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
from vlmtune.backbones.staging import parameters_of, side_by_side, unmasked
from vlmtune.types import FeatureSpec, Tokens


class FlavaNetwork(FlavaPreTrainedModel):
    """`transformers.FlavaModel` and the matching head of `transformers.FlavaForPreTraining`."""

    def __init__(self, config: FlavaConfig) -> None:
        super().__init__(config)
        # The names are those in checkpoints of `FlavaForPreTraining`.
        self.flava = FlavaModel(config)
        self.itm_head = FlavaITMHead(config)
        self.post_init()


class Flava(HFDualEncoder):
    """FLAVA (Singh et al. 2022, arXiv 2112.04482) as `transformers.FlavaModel` computes it.

    Embeddings are the class tokens of the image and the text encoder after their final norm,
    through the projections of the contrastive head.

    The fusion is the multimodal encoder with the matching head of `FlavaForPreTraining`, which was
    trained on masked images and captions; both towers run once per image and caption, the
    multimodal encoder once per pair. `FlavaModel` checkpoints have no matching head and so no
    fusion. The image codebook and the masked-prediction heads, which no score uses, are left out.
    It takes the arguments of `HFBackbone`.

    Until mid-2024 the library normalised FLAVA's attention twice (transformers pull request 31322),
    so numbers published before, such as Cola's and ARO's, differ from numbers of the same weights
    today.
    """

    kind = FlavaNetwork
    abilities = HFDualEncoder.abilities._replace(
        matching="with its matching head", joined="with its matching head"
    )
    attention = "eager"  # the only one the library has for FLAVA
    optional = ("itm_head",)

    @override
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        model = self.model.flava
        image = model.image_model
        text = model.text_model
        image_tower = HFImageTower(
            embed=image.embeddings,
            block_list=image.encoder.layer,
            final_norm=image.layernorm,
            head=model.image_projection,
            dtype=self._dtype,
        )
        text_tower = bert_tower(
            loaded.tokenizer, text, model.text_projection, self._dtype, final_norm=text.layernorm
        )
        return image_tower, text_tower

    @override
    def assemble(self, loaded: Loaded) -> None:
        super().assemble(loaded)
        if self.model.itm_head is None:
            # `optional` let the loader set the head to None.
            self.no_fusion = "its checkpoint has no matching head (itm_head)"
        else:
            self.fusion = FlavaFusion(self.model, self._dtype)

    @override
    def temperature(self) -> tuple[float, float]:
        scale = self.model.flava.logit_scale.detach().float().exp()
        return float(scale), 0.0


class FlavaFusion(Fusion):
    """The multimodal encoder over both towers' states, without their final norms."""

    image_input = text_input = FeatureSpec("state", -1)

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._flava = model.flava
        self._head = model.itm_head
        self._dtype = dtype
        self._encoder = model.flava.multimodal_model
        self.blocks = list(self._encoder.encoder.layer)
        self.width = self._encoder.config.hidden_size
        self.tail = parameters_of(self._encoder.layernorm, self._head)

    @override
    def prepare_image(self, image: Tokens) -> Tokens:
        states = image.values.to(self._dtype)
        tokens = self._flava.image_to_mm_projection(states)
        if self._encoder.use_cls_token:
            # Without this token of its own, the head reads the class token of the image tower.
            first = self._encoder.cls_token.expand(len(tokens), -1, -1)
            tokens = torch.cat([first, tokens], dim=1)
        return unmasked(tokens)

    @override
    def prepare_text(self, text: Tokens) -> Tokens:
        projected = self._flava.text_to_mm_projection(text.values.to(self._dtype))
        return text.masked(projected)

    @override
    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        outputs = self.cls_outputs(image, text)
        # The head pools the first token of a sequence.
        logits = self._head(outputs[:, None])
        return log_odds(logits)

    @override
    def cls_outputs(self, image: Tokens, text: Tokens) -> Float[Tensor, "P w"]:
        tokens = self._run(side_by_side(image, text), len(self.blocks))
        normed = self._encoder.layernorm(tokens)
        return normed[:, 0]  # the one that its head pools

    @override
    def joined(self, image: Tokens, text: Tokens, left_out: int) -> tuple[Tokens, Tokens]:
        # Images come first, as the fusion was trained.
        joined = side_by_side(image, text)
        tokens = self._run(joined, len(self.blocks) - left_out)
        special = 1 + self._encoder.use_cls_token  # the image tower's [CLS], after the fusion's own
        length = image.token_count
        patches = tokens[:, special:length]
        words = tokens[:, length:]
        return unmasked(patches), text.masked(words)

    def _run(self, joined: Tokens, stop: int) -> Float[Tensor, "P t w"]:
        """All tokens after the first `stop` blocks."""
        blocks = self.blocks[:stop]
        hidden = hide_padding(joined.mask, self._dtype)
        return through(blocks, joined.values.to(self._dtype), hidden)
