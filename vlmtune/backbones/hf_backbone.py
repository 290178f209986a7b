"""What the backbones of Hugging Face have in common: files, preprocessing and fingerprint."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.fingerprint import digest
from vlmtune.backbones.hf_loading import Loaded, describe, load
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec


class HFBackbone(Backbone):
    """A model of Hugging Face, frozen and in evaluation mode until told otherwise.

    Args:
        model: Hub id ("org/repo") or a folder as `save_pretrained` writes it: config, weights,
            tokenizer and image processor (relative to the working directory or else to the
            repository).
        revision: Commit, branch or tag of a hub id; None for its main branch.
        precision: Type of the weights.

    Attributes:
        kind: Class of the module.
        attention: Which of the library's attentions it runs.
        optional: Parts of the module that a checkpoint may lack.
        model: The module of the library.

    Raises:
        UserError: There is no such model, it is of another type, or its files do not fit together.
    """

    kind: ClassVar[type[PreTrainedModel]]
    attention: ClassVar[str] = "sdpa"
    optional: ClassVar[tuple[str, ...]] = ()

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
        loaded = load(model, revision, self.kind, self._dtype, self.attention, self.optional)
        self.model: Any = loaded.network
        self.check(model)
        self._described = describe(loaded)
        self._fingerprint: str | None = None
        self.transform = self.preprocessing(loaded, model)
        # Shadows the method: a bound method would carry the weights into every worker process.
        vars(self)["preprocess"] = self.transform
        self.assemble(loaded)
        pixels = self.transform(Image.new("RGB", (24, 16)))[None]
        try:
            with torch.no_grad():
                self.measure(pixels)
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"expected an image processor that fits the image tower of {model}, got images of "
                f"{tuple(pixels.shape[1:])}: {error}: correct preprocessor_config.json"
            ) from error
        self.eval()

    def check(self, model: str) -> None:
        """Raises a `UserError` where the model is known not to compute what it should."""

    def preprocessing(self, loaded: Loaded, model: str) -> "Preprocess":
        """Makes what turns images into pixel values."""
        del model
        return Preprocess(loaded.processor)

    @abstractmethod
    def assemble(self, loaded: Loaded) -> None:
        """Makes the parts of `self.model` that can be used one by one."""

    @abstractmethod
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        """Sets the sizes a `Backbone` has, from one preprocessed image."""

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, config, preprocessing and tokenizer, when first asked."""
        if self._fingerprint is None:
            self._fingerprint = digest(self._described, self.model)
        return self._fingerprint

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Resizes, crops and normalises as the model's image processor does."""
        return self.transform(image)

    def must_fit(self, reads: FeatureSpec, modality: str) -> None:
        """Raises a `UserError` where `reads` cannot be had."""
        if reason := self.fits(reads, modality):
            raise UserError(
                f"expected something that can be read, got {modality} {reads.kind} of layer "
                f"{reads.layer} ({reason}): read something else"
            )


class Preprocess:
    """The image processor of a model: an image to pixel values; picklable and small.

    Processors that cut both sides down to multiples of a number leave nothing of an image that is
    very long and thin. Such an image is first made as thick as one multiple.

    Args:
        processor: The library's processor.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._ratio = 0.0
        if (divisor := getattr(processor, "size_divisor", None)) is not None:
            self._ratio = divisor / longest_side(processor)

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Returns the pixel values of an image."""
        thin, long = sorted(image.size)
        if thin < self._ratio * long:
            thick, (width, height) = math.ceil(self._ratio * long), image.size
            image = image.resize((max(width, thick), max(height, thick)))
        return self._processor(images=image, return_tensors="pt")["pixel_values"][0]


def longest_side(processor: Any) -> int:
    """Longest side, in pixels, of what a processor of ViLT's family gives, before it is cut down.

    The shorter side becomes `shortest_edge`, unless the longer one then exceeds this.

    Raises:
        UserError: The processor has no `shortest_edge`.
    """
    size = dict(processor.size)
    shortest = size.get("shortest_edge")
    if not shortest:
        raise UserError(
            f"expected an image processor with a size of shortest_edge, got {size}: correct "
            "preprocessor_config.json"
        )
    return int(1333 / 800 * shortest)
