"""Every open_clip model: by built-in name, from the Hugging Face hub, or from a folder."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from open_clip import get_model_preprocess_cfg
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.fingerprint import digest
from vlmtune.backbones.open_clip_loading import load
from vlmtune.backbones.open_clip_text import TextSide, Tokenizer
from vlmtune.backbones.open_clip_towers import ImageSide
from vlmtune.backbones.staging import state_after, unmasked
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pooled

CHOICES = {
    "interpolation": ("bicubic", "bilinear"),
    "resize_mode": ("shortest", "longest", "squash"),
}


class OpenClip(Backbone):
    """A dual encoder of open_clip, frozen and in evaluation mode until someone decides otherwise.

    Embeddings and tokens are float32 whatever the precision of the weights. Tokens are those of the
    patches (no class token) and of the caption up to its end token. Captions are cut to the longest
    of the batch before the text tower runs where that cannot change a value, and only the blocks up
    to the layer that is read are run.

    Args:
        model: A built-in name ("ViT-B-32-quickgelu"), "hf-hub:org/repo", or a folder with
            `open_clip_config.json` and `open_clip_model.safetensors` ("local-dir:path" or the path;
            relative to the working directory or else to the repository). With a `vocabulary.txt`
            (one word a line) in the folder or hub repository captions are read word by word.
        pretrained: For a built-in name: a tag of open_clip ("openai", "laion2b_s34b_b79k") or a
            weights file; None for random weights.
        precision: Type of the weights.
        preprocessing: Fields of the model's own preprocessing that are to be otherwise: `mean`,
            `std`, `interpolation` ("bicubic", "bilinear") and `resize_mode` ("shortest", "longest",
            "squash"). Some published numbers need it, such as PUG: SPAR's, whose script gives every
            model ImageNet's mean and deviation.

    Attributes:
        model: The open_clip module.
        image_tower: A native ViT or timm's plain one (SigLIP) block by block; None for others.
        text_tower: open_clip's own text transformer block by block; None for Hugging Face text
            towers and for those that mask padding by ids (CoCa).

    Raises:
        UserError: There is no such model, tag or file; the weights do not fit; OpenAI's weights
            are asked for without QuickGELU, the activation they were trained with; or
            `preprocessing` has another field or a value that is none.

    Example:
        >>> backbone = OpenClip("ViT-S-32-alt")
        >>> backbone.embed_dim, backbone.text_width, backbone.image_tokens, backbone.text_special
        (256, 256, 49, (1, 1))
    """

    def __init__(
        self,
        model: str,
        pretrained: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        preprocessing: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if precision not in ("fp32", "bf16"):
            raise UserError(f"expected precision fp32 or bf16, got {precision!r}: choose one")
        _check_preprocessing(preprocessing or {})
        network, tokenizer, self._config = load(model, pretrained, precision)
        self.model = network.eval().requires_grad_(False)
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._preprocessing = dict(get_model_preprocess_cfg(network)) | (preprocessing or {})
        self._tokenizer = Tokenizer(tokenizer)
        self._fingerprint: str | None = None
        self.transform = Preprocess(self._preprocessing)
        # Shadows the method: a bound method would carry the weights into every worker process.
        vars(self)["preprocess"] = self.transform
        blank = self.transform(Image.new("RGB", (8, 8)))[None].to(self._dtype)
        self._image = ImageSide(self.model, self._dtype, blank)
        self._text = TextSide(self.model, self._tokenizer, self._dtype)
        self.image_tower, self.text_tower = self._image.tower, self._text.tower
        self._set_sizes()
        self.eval()

    def _set_sizes(self) -> None:
        scale: Any = self.model.logit_scale
        bias: Any = self.model.logit_bias
        self.embed_dim = int(self._config["embed_dim"])
        self.image_width, self.image_tokens = self._image.width, self._image.count
        self.text_width, self.text_special = self._text.width, self._text.special
        self.logit_scale = float(scale.detach().float().exp())
        self.logit_bias = 0.0 if bias is None else float(bias.detach())

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, architecture, preprocessing and vocabulary, when first asked."""
        if self._fingerprint is None:
            words = getattr(self._tokenizer.encode, "words", None)
            described = [self._config, self._preprocessing, words]
            self._fingerprint = digest(described, self.model)
        return self._fingerprint

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Resizes, crops and normalises as in the model's evaluation."""
        return self.transform(image)

    def encode_image(
        self, pixels: Float[Tensor, "n 3 height width"], reads: FeatureSpec
    ) -> Features:
        """Encodes preprocessed images; see the base class."""
        self._check(reads, "image")
        pixels = pixels.to(device=self.device, dtype=self._dtype)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            if reads.kind == "pooled":
                return Pooled(self._image.pooled(pixels).float())
            if reads.kind == "tokens":
                return unmasked(self._image.tokens(pixels, reads.layer))
            assert self.image_tower is not None
            return state_after(self.image_tower, self.image_tower.start(pixels), reads.layer)

    def encode_text(self, texts: Sequence[str], reads: FeatureSpec) -> Features:
        """Encodes captions; see the base class."""
        self._check(reads, "text")
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            if reads.kind == "pooled":
                return Pooled(self._text.pooled(texts).float())
            if reads.kind == "tokens":
                return self._text.tokens(texts, reads.layer)
            if reads.kind == "state":
                return self._text.state(texts, reads.layer)
            assert self.text_tower is not None
            return self.text_tower.words(texts)

    def fits(self, reads: FeatureSpec, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        return (self._image if modality == "image" else self._text).fits(reads)

    def _check(self, reads: FeatureSpec, modality: str) -> None:
        if reason := self.fits(reads, modality):
            raise UserError(
                f"expected something that can be read, got {modality} {reads.kind} of layer "
                f"{reads.layer} ({reason}): read something else"
            )


class Preprocess:
    """The evaluation transform of a model: an image to pixel values; picklable and small.

    Args:
        config: Fields of open_clip's `PreprocessCfg`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._transform: Any = image_transform_v2(PreprocessCfg(**config), is_train=False)

    def __call__(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Returns the pixel values of an image."""
        return self._transform(image)


def _check_preprocessing(given: dict[str, Any]) -> None:
    for field, value in given.items():
        known = CHOICES.get(field)
        if field in ("mean", "std"):
            fits = isinstance(value, list | tuple) and len(value) == 3
            fits = fits and all(isinstance(x, int | float) and x >= 0 for x in value)
            fits = fits and (field == "mean" or all(x > 0 for x in value))
        else:
            fits = known is not None and value in known
        if not fits:
            wanted = "mean and std of three numbers" + "".join(
                f", {name} of {', '.join(values)}" for name, values in CHOICES.items()
            )
            raise UserError(
                f"expected in preprocessing {wanted}, got {field}: {value!r}: correct it"
            )
