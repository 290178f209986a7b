"""SigLIP and SigLIP 2 of Hugging Face, for images of one size.

In: images and captions. Out: embeddings, tokens and states.
"""

import json
from typing import Any, ClassVar

from jaxtyping import Float
from tokenizers import normalizers
from torch import Tensor
from transformers import SiglipModel
from typing_extensions import override

from vlmtune.backbones.hf.backbone import HFDualEncoder
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import (
    HFImageTower,
    HFTextTower,
    HFTokenizer,
    Mask,
    States,
    vision_tower,
)
from vlmtune.backbones.staging import last_real, padded
from vlmtune.types import Tokens


class SigLIPFamily(HFDualEncoder):
    """What SigLIP and SigLIP 2 share: the text tower, and the pooling head of the image tower."""

    image_tower_kind: ClassVar[type[HFImageTower]] = HFImageTower

    @override
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        vision = self.model.vision_model
        image_tower = vision_tower(
            vision, vision.head, self._dtype, special=0, kind=self.image_tower_kind
        )
        text = self.model.text_model
        table = text.embeddings.position_embedding
        tokenizer = HFTokenizer(loaded.tokenizer, table.num_embeddings, lower=True)
        _check_end(tokenizer, loaded.tokenizer)
        text_tower = SiglipTextTower(
            tokenizer=tokenizer,
            embedding=text.embeddings.token_embedding,
            table=table,
            block_list=text.encoder.layers,
            final_norm=text.final_layer_norm,
            projection=text.head,
            dtype=self._dtype,
        )
        return image_tower, text_tower

    @override
    def portable_tokenizer(self) -> Any:
        """Returns a tokenizer that lower-cases captions and gives no mask."""
        tokenizer = super().portable_tokenizer()
        # Programs without vlmtune must not mask the padding either.
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids"]
        inner = getattr(tokenizer, "backend_tokenizer", None)
        if inner is None:
            return tokenizer
        steps = [normalizers.Lowercase()]
        if inner.normalizer is not None:
            described = json.loads(inner.to_str())["normalizer"]
            if described.get("normalizers", [{}])[0] == {"type": "Lowercase"}:
                return tokenizer
            steps.append(inner.normalizer)
        inner.normalizer = normalizers.Sequence(steps)
        return tokenizer


class SigLIP(SigLIPFamily):
    """SigLIP (Zhai et al. 2023, arXiv 2303.15343) as `transformers.SiglipModel` computes it.

    SigLIP 2 (Tschannen et al. 2025, arXiv 2502.14786) too, except its NaFlex models, which are
    `SigLIP2NaFlex`. Trained with a sigmoid: log-odds are `logit_scale * cosine + logit_bias`.
    Captions are lower-cased and padded to the full length, as in training; every token attends to
    the padding, and the last position is pooled. It takes the arguments of `HFBackbone`.
    """

    kind = SiglipModel


class SiglipTextTower(HFTextTower):
    """Every token attends to all, padding included; the last position is pooled."""

    @override
    def fill(self, words: Tokens) -> Tokens:
        return padded(words, self.embedding.weight[self.tokenizer.pad], self.positions)

    @override
    def attention(self, mask: Mask) -> dict[str, Any]:
        return {"attention_mask": None}

    @override
    def pool(self, tokens: States, mask: Mask) -> Float[Tensor, "n w"]:
        return last_real(tokens, mask)


def _check_end(tokenizer: HFTokenizer, loaded: Any) -> None:
    """Raises a `UserError` unless captions are words and an end token, as in training."""
    ids, _ = tokenizer(["a"])
    end = loaded.eos_token_id
    fits = tokenizer.special == (0, 1) and int(ids[0, -1]) == end
    tokenizer.check_end(fits, f"one end token (id {end}), and begin with a word")
