"""ALIGN of Hugging Face: a convolutional image tower beside BERT.

In: images and captions. Out: embeddings, and tokens of the last feature maps.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import AlignModel
from typing_extensions import override

from vlmtune.backbones.base import Abilities
from vlmtune.backbones.hf.backbone import HFBackbone
from vlmtune.backbones.hf.loading import Loaded
from vlmtune.backbones.hf.towers import bert_tower
from vlmtune.backbones.staging import gradients, no_such_layer, unmasked
from vlmtune.types import Features, FeatureSpec, Pixels, Pooled


class Align(HFBackbone):
    """ALIGN (Jia et al. 2021, arXiv 2102.05918) as `transformers.AlignModel` computes it.

    The image tower is EfficientNet: the image embedding is the mean (or maximum) over the places
    of its last feature map, without a projection. The text embedding is the projected first token
    of BERT. Image tokens are the places of a feature map, row by row. Only the last blocks, whose
    maps are as wide as the embedding, have tokens, and the image tower has no states. Arguments are
    those of `HFBackbone`.
    """

    kind = AlignModel
    abilities = Abilities(embeddings=True, tokens=True, text_tower=True)
    attention = "eager"  # the only one the library has for ALIGN

    @override
    def assemble(self, loaded: Loaded) -> None:
        model = self.model
        self.text_tower = self._text = bert_tower(
            loaded.tokenizer, model.text_model, model.text_projection, self._dtype
        )

    @override
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        _, width, rows, columns = self._maps(pixels, 1).shape
        self.embed_dim = width
        self.image_width = width
        self.image_tokens = rows * columns
        self.text_width = self._text.width
        self.text_special = self._text.tokenizer.special
        temperature = self.model.temperature.detach().float()
        self.logit_scale = 1 / float(temperature)
        # Tokens must have one width, so only the blocks as wide as the last count.
        self._layers = 0
        for block in reversed(self.model.vision_model.encoder.blocks):
            if block.projection.project_conv.out_channels != width:
                break
            self._layers += 1

    @override
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Features:
        self.check_fits(spec, "image")
        pixels = pixels.to(self.device)
        with gradients(spec):
            if spec.kind == "tokens":
                maps = self._maps(pixels, -spec.layer)
                tokens = maps.flatten(2).transpose(1, 2)
                return unmasked(tokens)
            maps = self._maps(pixels, 1)
            pooled = self.model.vision_model.pooler(maps)
            # The pooler keeps two dimensions of size 1.
            return Pooled(pooled.flatten(1).float())

    def _maps(self, pixels: Pixels, last: int) -> Float[Tensor, "n w rows columns"]:
        """The feature map after the block that is `last` from the end."""
        vision: Any = self.model.vision_model
        maps = vision.embeddings(pixels.to(self._dtype))
        # `last` is counted from the end, 1 for the last block.
        blocks = vision.encoder.blocks
        stop = len(blocks) + 1 - last
        for block in blocks[:stop]:
            maps = block(maps)
        return maps

    @override
    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        if modality == "text":
            return no_such_layer(spec, self._text.layers)
        if spec.kind == "words":
            return "images have no words"
        if spec.kind == "state":
            return "its image tower is convolutional, not a plain transformer"
        return no_such_layer(spec, self._layers)
