"""What the dual encoders of Hugging Face have in common."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.fingerprint import digest
from vlmtune.backbones.hf_loading import Loaded, describe, load
from vlmtune.backbones.hf_towers import HFImageTower, HFTextTower
from vlmtune.backbones.staging import masked, no_such_layer, parts, state_after, whole
from vlmtune.errors import UserError
from vlmtune.types import Features, Reads


class HFDualEncoder(Backbone):
    """A dual encoder of Hugging Face, frozen and in evaluation mode until told otherwise.

    Embeddings, tokens and states are float32 whatever the precision of the weights. Captions are
    cut to the longest of the batch where that cannot change a value, and only the blocks up to the
    layer that is read are run. Tokens of the last layer have the tower's final norm, also where the
    library's `last_hidden_state` lacks it.

    Args:
        model: Hub id ("org/repo") or a folder as `save_pretrained` writes it: config, weights,
            tokenizer and image processor (relative to the working directory or else to the
            repository).
        revision: Commit, branch or tag of a hub id; None for its main branch.
        precision: Type of the weights.

    Attributes:
        model: The module of the library.

    Raises:
        UserError: There is no such model, it is of another type, or its files do not fit together.
    """

    kind: ClassVar[type[PreTrainedModel]]
    attention: ClassVar[str] = "sdpa"

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        super().__init__()
        if precision not in ("fp32", "bf16"):
            raise UserError(f"expected precision fp32 or bf16, got {precision!r}: choose one")
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        loaded = load(model, revision, self.kind, self._dtype, self.attention)
        self.model: Any = loaded.network
        self.check(model)
        self._described = describe(loaded)
        self._fingerprint: str | None = None
        self.transform = Preprocess(loaded.processor)
        # Shadows the method: a bound method would carry the weights into every worker process.
        vars(self)["preprocess"] = self.transform
        self._image, self._text = self.towers(loaded)
        self.image_tower, self.text_tower = self._image, self._text
        self._set_sizes(model)
        self.eval()

    @abstractmethod
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of `self.model`."""

    def check(self, model: str) -> None:
        """Raises a `UserError` where the model is known not to compute what it should."""

    def _set_sizes(self, model: str) -> None:
        pixels = self.transform(Image.new("RGB", (24, 16)))[None]
        try:
            with torch.no_grad():
                state = self._image.start(pixels)
                self.embed_dim = int(self._image.finish(state).shape[1])
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"expected an image processor that fits the image tower of {model}, got images of "
                f"{tuple(pixels.shape[1:])}: {error}: correct preprocessor_config.json"
            ) from error
        self.image_width, self.text_width = self._image.width, self._text.width
        self.image_tokens = parts(state)[0].shape[1] - self._image.special
        self.text_special = self._text.tokenizer.special
        self.logit_scale = float(self.model.logit_scale.detach().float().exp())
        bias = getattr(self.model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach())

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, config, preprocessing and tokenizer, when first asked."""
        if self._fingerprint is None:
            self._fingerprint = digest(self._described, self.model)
        return self._fingerprint

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Resizes, crops and normalises as the model's image processor does."""
        return self.transform(image)

    def encode_image(self, pixels: Float[Tensor, "n 3 height width"], reads: Reads) -> Features:
        """Encodes preprocessed images; see the base class."""
        self._check(reads, "image")
        tower = self._image
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            start = tower.start(pixels.to(self.device))
            if reads.kind == "pooled":
                return Features(pooled=tower.finish(state_after(tower, start, -1)))
            state = state_after(tower, start, reads.layer)
            if reads.kind == "state":
                return state
            tokens, _ = parts(tower.norm(state) if reads.layer == -1 else state)
            return whole(tokens[:, tower.special :])

    def encode_text(self, texts: Sequence[str], reads: Reads) -> Features:
        """Encodes captions; see the base class."""
        self._check(reads, "text")
        tower = self._text
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            words = tower.words(texts)
            if reads.kind == "words":
                return words
            start = tower.start(words)
            if reads.kind == "pooled":
                return Features(pooled=tower.finish(state_after(tower, start, -1)))
            state = state_after(tower, start, reads.layer)
            if reads.kind == "state":
                return state
            tokens, _ = parts(tower.norm(state) if reads.layer == -1 else state)
            mask = parts(words)[1]
            return masked(tokens[:, : mask.shape[1]], mask)

    def fits(self, reads: Reads, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        if modality == "image" and reads.kind == "words":
            return "images have no words"
        tower = self._image if modality == "image" else self._text
        return no_such_layer(reads, tower.layers)

    def _check(self, reads: Reads, modality: str) -> None:
        if reason := self.fits(reads, modality):
            raise UserError(
                f"expected something that can be read, got {modality} {reads.kind} of layer "
                f"{reads.layer} ({reason}): read something else"
            )


class Preprocess:
    """The image processor of a model: an image to pixel values; picklable and small.

    Args:
        processor: The library's processor.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Returns the pixel values of an image."""
        return self._processor(images=image, return_tensors="pt")["pixel_values"][0]
