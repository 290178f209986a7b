"""What the dual encoders of Hugging Face have in common."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.backbones.hf_backbone import HFBackbone
from vlmtune.backbones.hf_loading import Loaded
from vlmtune.backbones.hf_towers import HFImageTower, HFTextTower
from vlmtune.backbones.staging import masked, no_such_layer, state_after, unmasked
from vlmtune.types import Features, FeatureSpec, Pooled


class HFDualEncoder(HFBackbone):
    """A dual encoder of Hugging Face, frozen and in evaluation mode until told otherwise.

    Embeddings, tokens and states are float32 whatever the precision of the weights. Captions are
    cut to the longest of the batch where that cannot change a value, and only the blocks up to the
    layer that is read are run. Tokens of the last layer have the tower's final norm, also where the
    library's `last_hidden_state` lacks it. Arguments are those of `HFBackbone`.

    Attributes:
        no_pooled: Why there are no embeddings, or None where there are.
    """

    no_pooled: str | None = None

    @abstractmethod
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of `self.model`."""

    def assemble(self, loaded: Loaded) -> None:
        """Makes the towers."""
        self._image, self._text = self.towers(loaded)
        self.image_tower, self.text_tower = self._image, self._text

    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        """Sets the sizes, from one preprocessed image."""
        state = self._image.start(pixels)
        self.embed_dim = self._text.width
        if self.no_pooled is None:
            self.embed_dim = int(self._image.finish(state).shape[1])
        self.image_width, self.text_width = self._image.width, self._text.width
        self.image_tokens = state.values.shape[1] - self._image.special
        self.text_special = self._text.tokenizer.special
        self.logit_scale, self.logit_bias = self.temperature()

    def temperature(self) -> tuple[float, float]:
        """Returns the factor on cosines the model was trained with, and the term added to them."""
        bias = getattr(self.model, "logit_bias", None)
        scale = float(self.model.logit_scale.detach().float().exp())
        return scale, 0.0 if bias is None else float(bias.detach())

    def encode_image(
        self, pixels: Float[Tensor, "n 3 height width"], reads: FeatureSpec
    ) -> Features:
        """Encodes preprocessed images; see the base class."""
        self.must_fit(reads, "image")
        tower = self._image
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            start = tower.start(pixels.to(self.device))
            if reads.kind == "pooled":
                return Pooled(tower.finish(state_after(tower, start, -1)))
            state = state_after(tower, start, reads.layer)
            if reads.kind == "state":
                return state
            state = tower.norm(state) if reads.layer == -1 else state
            return unmasked(state.values[:, tower.special :])

    def encode_text(self, texts: Sequence[str], reads: FeatureSpec) -> Features:
        """Encodes captions; see the base class."""
        self.must_fit(reads, "text")
        tower = self._text
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            words = tower.words(texts)
            if reads.kind == "words":
                return words
            start = tower.start(words)
            if reads.kind == "pooled":
                return Pooled(tower.finish(state_after(tower, start, -1)))
            state = state_after(tower, start, reads.layer)
            if reads.kind == "state":
                return state
            state = tower.norm(state) if reads.layer == -1 else state
            return masked(state.values[:, : words.mask.shape[1]], words.mask)

    def fits(self, reads: FeatureSpec, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        if modality == "image" and reads.kind == "words":
            return "images have no words"
        if reads.kind == "pooled":
            return self.no_pooled
        tower = self._image if modality == "image" else self._text
        return no_such_layer(reads, tower.layers)
