"""Every open_clip model: by built-in name, from the Hugging Face hub, or from a folder."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from open_clip import get_model_preprocess_cfg
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torch import Tensor

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.open_clip_loading import load
from vlmtune.backbones.open_clip_towers import ImageTower, TextTower, Tokenizer
from vlmtune.errors import UserError
from vlmtune.types import Features, Reads


class OpenClip(Backbone):
    """A dual encoder of open_clip, frozen and in evaluation mode until someone decides otherwise.

    Embeddings and tokens are float32 whatever the precision of the weights. Tokens are those of the
    patches (no class token) and of the caption up to its end token. Captions are cut to the longest
    of the batch before the text tower runs where that cannot change a value, and only the blocks up
    to the layer that is read are run.

    Args:
        model: A built-in name ("ViT-B-32-quickgelu"), "hf-hub:org/repo", or a folder with
            `open_clip_config.json` and `open_clip_model.safetensors` ("local-dir:path" or the path;
            relative to the working directory or else to the repository). A folder with a
            `vocabulary.txt` (one word a line) is read word by word.
        pretrained: For a built-in name: a tag of open_clip ("openai", "laion2b_s34b_b79k") or a
            weights file; None for random weights.
        precision: Type of the weights.

    Attributes:
        model: The open_clip module.
        text_tower: The text side, whose parts prompt tuning calls one by one.
        image_tower: The image side.

    Raises:
        UserError: There is no such model, tag or file; the weights do not fit; or OpenAI's weights
            are asked for without QuickGELU, the activation they were trained with.

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
    ) -> None:
        super().__init__()
        if precision not in ("fp32", "bf16"):
            raise UserError(f"expected precision fp32 or bf16, got {precision!r}: choose one")
        network, tokenizer, self._config = load(model, pretrained, precision)
        self.model = network.eval().requires_grad_(False)
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._preprocessing = dict(get_model_preprocess_cfg(network))
        self._tokenizer = Tokenizer(tokenizer)
        self._fingerprint: str | None = None
        self.transform = Preprocess(self._preprocessing)
        # Shadows the method: a bound method would carry the weights into every worker process.
        vars(self)["preprocess"] = self.transform
        blank = self.transform(Image.new("RGB", (8, 8)))[None].to(self._dtype)
        self.image_tower = ImageTower(self.model, blank)
        self.text_tower = TextTower(self.model)
        self._set_sizes()

    def _set_sizes(self) -> None:
        scale: Any = self.model.logit_scale
        self.embed_dim = int(self._config["embed_dim"])
        self.image_width = self.image_tower.width
        self.image_tokens = self.image_tower.tokens_per_image
        self.text_width = self.text_tower.width
        words = getattr(self._tokenizer.encode, "words", ("a",))
        self.text_special = self._tokenizer.leading_and_trailing(words[0])
        self.logit_scale = float(scale.detach().float().exp())

    @property
    def fingerprint(self) -> str:
        """sha256 of weights, architecture, preprocessing and vocabulary, when first asked."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            words = getattr(self._tokenizer.encode, "words", None)
            described = [self._config, self._preprocessing, words]
            digest.update(json.dumps(described, sort_keys=True, default=str).encode())
            for name, value in sorted(self.model.state_dict().items()):
                flat = value.detach().cpu().contiguous().reshape(-1)
                digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                digest.update(memoryview(flat.view(torch.uint8).numpy()))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """Resizes, crops and normalises as in the model's evaluation."""
        return self.transform(image)

    def tokenize(self, texts: Sequence[str]) -> tuple[Int[Tensor, "n t"], Bool[Tensor, "n t"]]:
        """Returns ids and mask on the backbone's device; cut to the longest where that is safe.

        Raises:
            UserError: A caption has no tokens between its special ones.
        """
        ids, mask = self._tokenizer(list(texts))
        lengths = mask.sum(dim=1)
        empty = (lengths <= sum(self.text_special)).nonzero().flatten().tolist()
        if empty:
            raise UserError(
                f"expected captions with words, got {texts[empty[0]]!r} (number {empty[0]} of "
                f"{len(texts)}): remove or correct it"
            )
        if self.text_tower.trims:
            longest = int(lengths.max()) if len(lengths) else 0
            ids, mask = ids[:, :longest], mask[:, :longest]
        return ids.to(self.device), mask.to(self.device)

    def encode_image(self, pixels: Float[Tensor, "n 3 height width"], reads: Reads) -> Features:
        """Encodes preprocessed images; see the base class."""
        self._check(reads, "image")
        pixels = pixels.to(device=self.device, dtype=self._dtype)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            if reads.kind == "pooled":
                return Features(pooled=self.image_tower.pooled(pixels).float())
            tokens = self.image_tower.tokens(pixels, reads.layer).float()
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        return Features(tokens=tokens, mask=mask)

    def encode_text(self, texts: Sequence[str], reads: Reads) -> Features:
        """Encodes captions; see the base class."""
        self._check(reads, "text")
        ids, mask = self.tokenize(texts)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not reads.frozen):
            if reads.kind == "pooled":
                return Features(pooled=self.text_tower.pooled(ids).float())
            tokens = self.text_tower.tokens(ids, reads.layer).float()
            longest = int(mask.sum(dim=1).max())
            mask = mask[:, :longest]
            tokens = tokens[:, :longest].masked_fill(~mask[:, :, None], 0.0)
        return Features(tokens=tokens, mask=mask)

    def fits(self, reads: Reads, modality: str) -> str | None:
        """Returns why `reads` cannot be had for "image" or "text", or None where it can."""
        if reads.kind == "pooled":
            return None
        tower = self.image_tower if modality == "image" else self.text_tower
        return tower.fits(reads.layer)

    def _check(self, reads: Reads, modality: str) -> None:
        if reason := self.fits(reads, modality):
            raise UserError(
                f"expected a readable layer, got {modality} tokens of layer {reads.layer} "
                f"({reason}): read another layer"
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
