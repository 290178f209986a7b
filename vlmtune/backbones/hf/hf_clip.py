"""CLIP of Hugging Face: OpenAI's weights and all others saved in that format.

In: images and captions. Out: embeddings, tokens and states.
Never: OpenAI's weights with an activation that they were not trained with.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor
from transformers import CLIPModel
from typing_extensions import override

from vlmtune.backbones.hf.backbone import HFDualEncoder
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import HFImageTower, HFTextTower, HFTokenizer, vision_tower
from vlmtune.backbones.staging import Mask, States, embed_words, last_real
from vlmtune.backbones.weight_checks import named_openai
from vlmtune.errors import UserError
from vlmtune.types import Pixels, Tokens


class HFCLIP(HFDualEncoder):
    """CLIP (Radford et al. 2021, arXiv 2103.00020) as `transformers.CLIPModel` computes it.

    The image embedding is the projected class token, the text embedding the projected end token.
    It takes the arguments of `HFBackbone`. Weights named as OpenAI's are refused if the config runs
    them with another activation than QuickGELU, with which they were trained.
    """

    kind = CLIPModel
    # With this `eos_token_id` the library pools the highest id of a caption, as old configs need;
    # with None it never does.
    pools_highest: ClassVar[int | None] = 2

    @override
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        vision = self.model.vision_model
        text = self.model.text_model
        model = self.model
        acts = {text.config.hidden_act, vision.config.hidden_act}
        source = str(self.init_args["model"])
        if named_openai(source) and acts != {"quick_gelu"}:
            raise UserError(
                f"expected hidden_act quick_gelu for OpenAI's weights, got {', '.join(acts)} in "
                f"the config of {source}: write quick_gelu there"
            )
        embed = partial(_embed, vision)
        image_tower = vision_tower(vision, model.visual_projection, self._dtype, embed)
        table = text.embeddings.position_embedding
        tokenizer = HFTokenizer(loaded.tokenizer, table.num_embeddings)
        end = int(text.eos_token_id)
        # Old configs of OpenAI name a wrong end token (2); the library then pools the highest id.
        _check_end(tokenizer, end, highest=end == self.pools_highest)
        text_tower = CLIPTextTower(
            tokenizer=tokenizer,
            embedding=text.embeddings.token_embedding,
            table=table,
            block_list=text.encoder.layers,
            final_norm=text.final_layer_norm,
            projection=model.text_projection,
            dtype=self._dtype,
        )
        return image_tower, text_tower


class CLIPTextTower(HFTextTower):
    """Attention is causal, so padding is cut; the first end token is pooled."""

    @override
    def words(self, texts: Sequence[str]) -> Tokens:
        ids, mask = self.tokenizer(texts)
        # A caption may spell out the end token, and ends there.
        last = mask.sum(dim=1, keepdim=True) - 1
        is_end = ids == ids.gather(1, last)
        ends_before = is_end.cumsum(dim=1) - is_end.int()
        return embed_words(self.embedding, ids, mask & (ends_before == 0))

    @override
    def attention(self, mask: Mask) -> dict[str, Any]:
        return {"attention_mask": None, "is_causal": True}

    @override
    def pool(self, tokens: States, mask: Mask) -> Float[Tensor, "n w"]:
        return last_real(tokens, mask)


def _embed(vision: Any, pixels: Pixels) -> States:
    return vision.pre_layrnorm(vision.embeddings(pixels))


def _check_end(tokenizer: HFTokenizer, end: int, highest: bool) -> None:
    """Raises a `UserError` unless the model pools the last token of a caption."""
    # The library pools the first token with id `end`, or the one with the highest id.
    ids, mask = tokenizer(["a"])
    caption = ids[0]
    is_end = (caption == end).int()
    pooled = caption.argmax() if highest else is_end.argmax()
    last = int(mask.sum()) - 1
    fits = tokenizer.special[1] == 1 and int(pooled) == last
    tokenizer.check_end(fits, f"the token the model pools (id {end})")
