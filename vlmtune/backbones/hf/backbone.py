"""What the backbones of Hugging Face share: files, preprocessing, fingerprint and two towers.

In: a hub id or a folder, then images and captions. Out: features.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from vlmtune.backbones.base import Abilities, Backbone
from vlmtune.backbones.hf.image_size import divisor, resized
from vlmtune.backbones.hf.loading import Loaded, describe, load, quiet
from vlmtune.backbones.hf.towers import HFImageTower, HFTextTower
from vlmtune.backbones.peft_adapter import merged
from vlmtune.backbones.staging import encode_words, gradients, no_such_layer, state_after
from vlmtune.backbones.weight_checks import DTYPES, digest
from vlmtune.errors import UserError
from vlmtune.storage.files import reading
from vlmtune.types import Features, FeatureSpec, Pixels, Pooled


class HFBackbone(Backbone):
    """A model of Hugging Face, loaded frozen and in evaluation mode.

    Args:
        model: Hub id ("org/repo") or a folder as `save_pretrained` writes it: config, weights,
            tokenizer and image processor (relative to the working directory or else to the
            repository).
        revision: Commit, branch or tag of a hub id; None for its main branch.
        precision: Type of the weights.
        image_size: Height and width of images in pixels, of ViLT's the shorter side; None for those
            of the checkpoint. Positions of patches are interpolated once, so fine-tune the model
            before you use it.
        peft: Folder or hub id of a PEFT adapter such as LoRA, whose updates are merged into the
            weights.

    Attributes:
        kind: Class of the module.
        attention: The library's attention implementation.
        optional: Parts of the module that a checkpoint may lack.
        processing: The tokenizer and the image processor of the library.
    """

    kind: ClassVar[type[PreTrainedModel]]
    _text: HFTextTower
    attention: ClassVar[str] = "sdpa"
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        image_size: int | None = None,
        peft: str | None = None,
    ) -> None:
        super().__init__()
        self._dtype = DTYPES[precision]
        # Everything that may come from a hub is read here.
        loaded = load(model, revision, self.kind, self._dtype, self.attention, self.optional)
        if peft is not None:
            loaded = loaded._replace(network=merged(loaded.network, peft))
        if image_size is not None:
            loaded = resized(loaded, image_size, model)
        self.model: Any = loaded.network
        self.processing = (loaded.tokenizer, loaded.processor)
        # A config that the class cannot run, or a processor of another model, fails here.
        expected = f"weights, tokenizer and image processor of one {type(self).__name__}"
        with reading(model, expected, "use the whole checkpoint of this model"):
            self.preprocess = self.preprocessing(loaded, model)
            # Only now: options of a class may have changed the image processor.
            self._described = describe(loaded)
            self.assemble(loaded)
            # Sizes that no config states are measured on a blank image.
            with torch.no_grad():
                self.measure(self.blank())
        self.eval()

    def preprocessing(self, loaded: Loaded, model: str) -> "Preprocess":
        """Makes the function from images to pixel values."""
        return Preprocess(loaded.processor)

    @abstractmethod
    def assemble(self, loaded: Loaded) -> None:
        """Takes `self.model` apart into towers and fusion."""

    @abstractmethod
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        """Sets the sizes of a `Backbone`, from one preprocessed image."""

    @cached_property
    @override
    def fingerprint(self) -> str:
        # Config, preprocessing and tokenizer change features as weights do.
        return digest(self._described, self.model)

    @override
    def save(self, folder: Path) -> None:
        """Writes the folder of `save_pretrained`, with tokenizer and image processor."""
        with quiet():
            for part in (self.model, self.portable_tokenizer(), self.processing[1]):
                part.save_pretrained(folder)

    def portable_tokenizer(self) -> Any:
        """Returns the tokenizer for programs without vlmtune, which pad to its full length."""
        tokenizer = copy.deepcopy(self.processing[0])
        if self.text_tower is not None:
            # Some checkpoints state no length, and padding to it would fill the memory.
            tokenizer.model_max_length = self.text_tower.positions
        return tokenizer

    @override
    def encode_text(self, texts: Sequence[str], spec: FeatureSpec) -> Features:
        self.check_fits(spec, "text")
        with gradients(spec):
            words = self._text.words(texts)
            return encode_words(self._text, words, spec)

    @override
    def too_long(self, texts: Sequence[str]) -> list[str]:
        return self._text.tokenizer.too_long(texts)


class HFDualEncoder(HFBackbone):
    """A dual encoder of Hugging Face, loaded frozen and in evaluation mode.

    Embeddings, tokens and states are float32 whatever the precision of the weights. Captions are
    cut to the longest of the batch where that cannot change a value, and only the blocks up to the
    layer of the `FeatureSpec` run. Tokens of the last layer have the tower's final norm, even if
    the library's `last_hidden_state` lacks it. It takes the arguments of `HFBackbone`.
    """

    abilities = Abilities(embeddings=True, tokens=True, image_tower=True, text_tower=True)
    no_pooled: str | None = None  # why there are no embeddings

    @abstractmethod
    def towers(self, loaded: Loaded) -> tuple[HFImageTower, HFTextTower]:
        """Makes the two towers of `self.model`."""

    @override
    def assemble(self, loaded: Loaded) -> None:
        self._image, self._text = self.towers(loaded)
        self.image_tower = self._image
        self.text_tower = self._text

    @override
    def measure(self, pixels: Float[Tensor, "1 3 height width"]) -> None:
        state = self._image.start(pixels)
        if self.no_pooled is None:
            self.embed_dim = int(self._image.finish(state).shape[1])
        else:
            self.embed_dim = self._text.width
        self.image_width = self._image.width
        self.text_width = self._text.width
        self.image_tokens = state.mask.shape[1] - self._image.special
        self.text_special = self._text.tokenizer.special
        self.logit_scale, self.logit_bias = self.temperature()

    def temperature(self) -> tuple[float, float]:
        """Returns the factor on cosines in pre-training, and the term added to them."""
        scale = self.model.logit_scale.detach().float().exp()
        # Only models trained with a sigmoid have a bias.
        bias = getattr(self.model, "logit_bias", None)
        if bias is None:
            return float(scale), 0.0
        return float(scale), float(bias.detach())

    @override
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Features:
        self.check_fits(spec, "image")
        tower = self._image
        with gradients(spec):
            start = tower.start(pixels.to(self.device))
            if spec.kind == "pooled":
                last = state_after(tower, start, -1)
                return Pooled(tower.finish(last))
            state = state_after(tower, start, spec.layer)
            if spec.kind == "state":
                return state
            if spec.layer == -1:
                state = tower.norm(state)
            patches = state.without_first(tower.special)
            return patches.masked(patches.values)

    @override
    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        if modality == "image" and spec.kind == "words":
            return "images have no words"
        if spec.kind == "pooled":
            return self.no_pooled
        tower = self._image if modality == "image" else self._text
        return no_such_layer(spec, tower.layers)


class Preprocess:
    """The image processor of a model, from an image to pixel values; picklable and small."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        # A processor that cuts both sides down to multiples of a number leaves nothing of an image
        # whose sides have a smaller ratio.
        self._ratio = 0.0
        step = divisor(processor)
        if step > 1:
            self._ratio = step / longest_side(processor)

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Returns the pixel values of an image."""
        thin, long = sorted(image.size)
        if thin < self._ratio * long:
            thick = math.ceil(self._ratio * long)
            width = max(image.width, thick)
            height = max(image.height, thick)
            image = image.resize((width, height))
        output = self._processor(images=image, return_tensors="pt")
        return output["pixel_values"][0]


def check_steps(processor: Any, steps: Sequence[str], model: str) -> None:
    """Raises a `UserError` if an image processor leaves out a step that the network relies on.

    Without it the network would read another part of the image, and nobody would notice.
    """
    for step in steps:
        if not getattr(processor, step):
            raise UserError(
                f"expected {step} true in preprocessor_config.json of {model}, got false: set it "
                "to true, or get the file again"
            )


def longest_side(processor: Any) -> int:
    """Longest side, in pixels, of images from a processor of ViLT's family, before it cuts them.

    The shorter side becomes `shortest_edge`, unless the longer side then exceeds this.
    """
    return int(1333 / 800 * processor.size["shortest_edge"])
