"""Every open_clip model: by built-in name, from the Hugging Face hub, or from a folder.

In: a model name, then images and captions. Out: features.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from jaxtyping import Int
from open_clip import get_model_preprocess_cfg
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import PreprocessCfg, image_transform_v2
from pydantic import ConfigDict, Field, PositiveFloat
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.backbones.base import Abilities, Backbone
from vlmtune.backbones.open_clip.loading import CONFIG, RANDOM, VOCABULARY, load
from vlmtune.backbones.open_clip.text import TextSide, Tokenizer
from vlmtune.backbones.open_clip.towers import ImageSide
from vlmtune.backbones.peft_adapter import merged
from vlmtune.backbones.staging import gradients
from vlmtune.backbones.weight_checks import DTYPES, digest, loaded_whole
from vlmtune.backbones.word_tokenizer import WordTokenizer
from vlmtune.storage.files import write_text
from vlmtune.types import Features, FeatureSpec, Pixels

WEIGHTS_FILE = "open_clip_model.safetensors"  # as open_clip names it on the hub
PLAIN = "with a plain vision transformer and open_clip's own text transformer"


class PreprocessingChanges(TypedDict, total=False):
    """What may replace the preprocessing that a model came with."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    mean: Annotated[list[float], Field(min_length=3, max_length=3)]
    std: Annotated[list[PositiveFloat], Field(min_length=3, max_length=3)]
    interpolation: Literal["bicubic", "bilinear"]
    resize_mode: Literal["shortest", "longest", "squash"]


class OpenClip(Backbone):
    """A dual encoder of open_clip, loaded frozen and in evaluation mode.

    Embeddings and tokens are float32 whatever the precision of the weights. Image tokens are the
    patches (no class token), text tokens the caption up to its end token. Captions are cut to the
    longest of the batch where that cannot change a value, and only the blocks up to the layer of
    the `FeatureSpec` run.

    Args:
        model: A built-in name ("ViT-B-32-quickgelu"), "hf-hub:org/repo", or a folder with
            `open_clip_config.json` and `open_clip_model.safetensors` ("local-dir:path" or the path;
            relative to the working directory or else to the repository). With a `vocabulary.txt`
            (one word a line) in the folder or hub repository captions are read word by word.
        pretrained: For a built-in name: a tag of open_clip ("openai", "laion2b_s34b_b79k"), or
            "random" for random weights, or a file: a training checkpoint of open_clip
            (`epoch_5.pt`) or a state dict (.pt, .pth, .bin, .safetensors), loaded without running
            its code. None for a model with its own weights.
        precision: Type of the weights.
        preprocessing: Replacements in the model's preprocessing. Some published numbers need it,
            such as PUG: SPAR's, whose script gives every model ImageNet's mean and deviation.
        context_length: Tokens that a caption may have, start and end included; None for those the
            model was trained on (77). A larger number stretches the positions after the first 20
            (Long-CLIP, Zhang et al. 2024, without its fine-tuning): captions of up to 20 tokens
            keep their embeddings, longer ones change. Train on long captions before you use it.
        image_size: Side of images in pixels, or [height, width]; None for the size the model was
            trained on. The positions of its patches are interpolated (bicubic), so fine-tune it
            before you use it. With `preprocessing: {resize_mode: squash}` no side is cropped.
        peft: Folder or hub id of a PEFT adapter such as LoRA, whose updates are merged into the
            weights.

    Attributes:
        tokenizer: Turns captions into ids and masks.
        image_tower: A native ViT or timm's plain one (SigLIP); None for others.
        text_tower: open_clip's own text transformer; None for Hugging Face text towers and for
            towers that mask padding by ids (CoCa).

    Raises:
        UserError: There is no such model, tag or file; a built-in name comes without `pretrained`;
            the weights do not fit, or would run without the activation they were trained with; or
            the model cannot take that `context_length` or `image_size`.

    Example:
        >>> backbone = OpenClip("ViT-S-32-alt", "random")
        >>> backbone.embed_dim, backbone.text_width, backbone.image_tokens, backbone.text_special
        (256, 256, 49, (1, 1))
    """

    abilities = Abilities(embeddings=True, tokens=PLAIN, image_tower=PLAIN, text_tower=PLAIN)

    def __init__(
        self,
        model: str,
        pretrained: str | None = None,
        precision: Literal["fp32", "bf16"] = "fp32",
        preprocessing: PreprocessingChanges | None = None,
        context_length: int | None = None,
        image_size: int | tuple[int, int] | None = None,
        peft: str | None = None,
    ) -> None:
        super().__init__()
        self._dtype = DTYPES[precision]
        self.random_weights = pretrained == RANDOM
        network, tokenizer, self._config, self.weights_file = load(
            model, pretrained, precision, context_length, image_size
        )
        if peft is not None:
            network = merged(network, peft)
        self.model = network.eval().requires_grad_(False)
        # What a user replaces counts before what the weights came with.
        self.preprocessing: dict[str, Any] = dict(get_model_preprocess_cfg(network))
        self.preprocessing |= preprocessing or {}
        self.tokenizer = Tokenizer(tokenizer)
        # Tokenizers in Python take as long for a batch as a GPU takes for its step.
        if not isinstance(tokenizer, HFTokenizer):
            self.tokenize = self.tokenizer.ids
        with loaded_whole(f"preprocess_cfg of {model}"):
            config = PreprocessCfg(**self.preprocessing)
            transform: Any = image_transform_v2(config, is_train=False)
            self.preprocess = transform
            blank = self.blank().to(self._dtype)
        # Sizes that no config states are measured on a blank image.
        self._image = ImageSide(self.model, self._dtype, blank)
        self.image_tower = self._image.tower
        self.image_width = self._image.width
        self.image_tokens = self._image.count
        self._text = TextSide(self.model, self.tokenizer, self._dtype)
        self.text_tower = self._text.tower
        self.text_width = self._text.width
        self.text_special = self._text.special
        self.embed_dim = int(self._config["embed_dim"])
        scale: Any = self.model.logit_scale
        self.logit_scale = float(scale.detach().float().exp())
        bias: Any = self.model.logit_bias
        if bias is not None:
            self.logit_bias = float(bias.detach())
        self.eval()

    @cached_property
    @override
    def fingerprint(self) -> str:
        encode = self.tokenizer.encode
        words: Any = getattr(encode, "words", None)
        config = self._config
        if isinstance(encode, HFTokenizer):
            from vlmtune.backbones.hf.loading import described_tokenizer  # loads transformers

            # Its config has only the name, whose files may change.
            words = described_tokenizer(encode.tokenizer)
        elif words is not None:
            # `save` adds the tokenizer's name, so that it must not count.
            text = dict(config["text_cfg"])
            text.pop("hf_tokenizer_name", None)
            config = {**config, "text_cfg": text}
        return digest([config, self.preprocessing, words], self.model)

    @override
    def save(self, folder: Path) -> None:
        """Writes the folder that open_clip loads as `local-dir:FOLDER`, or from the hub."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {}
        for name, value in self.model.state_dict().items():
            # safetensors refuses tensors that share memory or have gaps in it.
            state[name] = value.cpu().contiguous().clone()
        save_file(state, folder / WEIGHTS_FILE)
        config = self._config
        encode = self.tokenizer.encode
        if isinstance(encode, WordTokenizer):
            lines = [f"{word}\n" for word in encode.words]
            write_text(folder / VOCABULARY, "".join(lines))
            # So that transformers and sentence-transformers read the words too.
            encode.portable().save_pretrained(folder)
            # open_clip reads the tokenizer of a local folder there, whatever it is called.
            text = {**config["text_cfg"], "hf_tokenizer_name": VOCABULARY}
            config = {**config, "text_cfg": text}
        elif isinstance(encode, HFTokenizer):
            encode.save_pretrained(folder)
        content = {"model_cfg": config, "preprocess_cfg": self.preprocessing}
        write_text(folder / CONFIG, json.dumps(content, indent=2) + "\n")

    @override
    def encode_image(self, pixels: Pixels, spec: FeatureSpec) -> Features:
        self.check_fits(spec, "image")
        pixels = pixels.to(device=self.device, dtype=self._dtype)
        with gradients(spec):
            return self._image.encode(pixels, spec)

    @override
    def encode_text(self, texts: Sequence[str], spec: FeatureSpec) -> Features:
        self.check_fits(spec, "text")
        with gradients(spec):
            return self._text.encode(texts, spec)

    @override
    def use_tokens(self, texts: Sequence[str], ids: Int[Tensor, "n t"]) -> None:
        self.tokenizer.use(texts, ids)

    @override
    def too_long(self, texts: Sequence[str]) -> list[str]:
        return self.tokenizer.too_long(texts)

    @override
    def check_words(self, texts: Iterable[str]) -> None:
        if isinstance(self.tokenizer.encode, WordTokenizer):
            self.tokenizer.encode.check(texts)

    @override
    def fits(self, spec: FeatureSpec, modality: str) -> str | None:
        side = self._image if modality == "image" else self._text
        return side.fits(spec)
