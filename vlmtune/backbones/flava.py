"""FLAVA as a dual encoder, and as a fusion encoder where its matching head is there."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import FlavaConfig, FlavaModel, FlavaPreTrainedModel
from transformers.models.flava.modeling_flava import FlavaITMHead

from vlmtune.backbones.base import Fusion
from vlmtune.backbones.hf_dual import HFDualEncoder
from vlmtune.backbones.hf_loading import Loaded
from vlmtune.backbones.hf_towers import (
    HFImageTower,
    HFTextTower,
    HFTokenizer,
    first_token,
    log_odds,
    through,
    unseen,
)
from vlmtune.backbones.staging import masked, parameters_of, side_by_side, unmasked
from vlmtune.types import FeatureSpec, Tokens


class FlavaNetwork(FlavaPreTrainedModel):
    """`transformers.FlavaModel` and the matching head of `transformers.FlavaForPreTraining`.

    Args:
        config: The model's config.
    """

    def __init__(self, config: FlavaConfig) -> None:
        super().__init__(config)
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
    Arguments are those of `HFBackbone`.

    Until mid-2024 the library normalised FLAVA's attention twice (corrected in transformers pull
    request 31322), so numbers published before that, as those of Cola and ARO, differ from what the
    same weights give today.
    """

    kind = FlavaNetwork
    attention = "eager"  # the only one the library has for FLAVA
    optional = ("itm_head",)

    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of the model."""
        model = self.model.flava
        image, text = model.image_model, model.text_model
        image_tower = HFImageTower(
            embed=image.embeddings,
            blocks=image.encoder.layer,
            norm=image.layernorm,
            head=partial(first_token, model.image_projection),
            owners=(image.layernorm, model.image_projection),
            special=1,
            dtype=self._dtype,
        )
        table = text.embeddings.position_embeddings
        text_tower = FlavaTextTower(
            text.embeddings,
            tokenizer=HFTokenizer(loaded.tokenizer, table.num_embeddings),
            embedding=text.embeddings.word_embeddings,
            table=table,
            blocks=text.encoder.layer,
            norm=text.layernorm,
            projection=model.text_projection,
            dtype=self._dtype,
        )
        return image_tower, text_tower

    def assemble(self, loaded: Loaded) -> None:
        """Makes the towers, and the fusion where there is a matching head."""
        super().assemble(loaded)
        if self.model.itm_head is None:
            self.no_fusion = "its checkpoint has no matching head (itm_head)"
        else:
            self.fusion = FlavaFusion(self.model, self._dtype)

    def temperature(self) -> tuple[float, float]:
        """Returns the factor on cosines the model was trained with, and 0."""
        return float(self.model.flava.logit_scale.detach().float().exp()), 0.0


class FlavaTextTower(HFTextTower):
    """Every token sees all but padding; the class token is pooled."""

    def __init__(self, embeddings: nn.Module, **parts: Any) -> None:
        super().__init__(**parts)
        self._embeddings: Any = embeddings

    def embed(self, tokens: Float[Tensor, "n t w"]) -> Float[Tensor, "n t w"]:
        """Adds the type of a first sentence and positions, and applies BERT's first norm."""
        embeddings = self._embeddings
        typed = tokens + embeddings.token_type_embeddings.weight[0]
        return embeddings.dropout(embeddings.LayerNorm(super().embed(typed)))

    def attention(self, mask: Bool[Tensor, "n t"]) -> dict[str, Any]:
        """Hides padding from all tokens."""
        return {"attention_mask": unseen(mask, self._dtype)}

    def pool(
        self, tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]
    ) -> Float[Tensor, "n w"]:
        """The class token."""
        del mask
        return tokens[:, 0]


class FlavaFusion(Fusion):
    """The multimodal encoder over both towers' states, without their final norms.

    Args:
        model: The whole model.
        dtype: Type of the weights, in which it computes.
    """

    image_input = text_input = FeatureSpec("state", -1)

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._flava, self._head, self._dtype = model.flava, model.itm_head, dtype
        self._encoder = model.flava.multimodal_model

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The blocks, first to last."""
        return list(self._encoder.encoder.layer)

    @property
    def tail(self) -> Sequence[nn.Parameter]:
        """Final norm and matching head."""
        return parameters_of(self._encoder.layernorm, self._head)

    def prepare_image(self, image: Tokens) -> Tokens:
        """Projects an image's tokens, and puts the multimodal class token before them."""
        tokens = self._flava.image_to_mm_projection(image.values.to(self._dtype))
        if self._encoder.use_cls_token:
            first = self._encoder.cls_token.expand(len(tokens), -1, -1)
            tokens = torch.cat([first, tokens], dim=1)
        return unmasked(tokens)

    def prepare_text(self, text: Tokens) -> Tokens:
        """Projects a caption's tokens."""
        tokens, mask = text.values, text.mask
        return masked(self._flava.text_to_mm_projection(tokens.to(self._dtype)), mask)

    def match(self, image: Tokens, text: Tokens) -> Float[Tensor, "P"]:
        """Log-odds of the matching head."""
        joined = side_by_side(image, text)
        tokens = through(
            self.blocks, joined.values.to(self._dtype), unseen(joined.mask, self._dtype)
        )
        return log_odds(self._head(self._encoder.layernorm(tokens)))
