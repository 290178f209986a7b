"""FLAVA as a dual encoder."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import FlavaModel

from vlmtune.backbones.hf_dual import HFDualEncoder
from vlmtune.backbones.hf_loading import Loaded
from vlmtune.backbones.hf_towers import HFImageTower, HFTextTower, HFTokenizer


class Flava(HFDualEncoder):
    """FLAVA (Singh et al. 2022, arXiv 2112.04482) as `transformers.FlavaModel` computes it.

    Embeddings are the class tokens of the image and the text encoder after their final norm,
    through the projections of the contrastive head. `FlavaForPreTraining` checkpoints load too;
    their image codebook and masked-prediction heads, which no score uses, are left out. Arguments
    are those of `HFDualEncoder`.

    Until mid-2024 the library normalised FLAVA's attention twice (corrected in transformers pull
    request 31322), so numbers published before that, as those of Cola and ARO, differ from what the
    same weights give today.
    """

    kind = FlavaModel
    attention = "eager"  # the only one the library has for FLAVA

    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of the model."""
        image, text, model = self.model.image_model, self.model.text_model, self.model
        image_tower = HFImageTower(
            embed=image.embeddings,
            blocks=image.encoder.layer,
            norm=image.layernorm,
            head=lambda tokens: model.image_projection(tokens[:, 0]),
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
        """Hides padding from all tokens by a term added to attention scores."""
        hidden = torch.zeros(mask.shape, dtype=self._dtype, device=mask.device)
        hidden = hidden.masked_fill(~mask, torch.finfo(self._dtype).min)
        return {"attention_mask": hidden[:, None, None, :]}

    def pool(
        self, tokens: Float[Tensor, "n t w"], mask: Bool[Tensor, "n t"]
    ) -> Float[Tensor, "n w"]:
        """The class token."""
        del mask
        return tokens[:, 0]
