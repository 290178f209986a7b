"""Finds and loads open_clip models; open_clip downloads weights that its cache lacks.

In: a model name, and a tag or a weights file. Out: the model, its tokenizer and its config, or a
`UserError`.
Never: OpenAI's weights with an activation that they were not trained with.
"""

import contextlib
import difflib
import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import open_clip
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from torch import nn
from transformers import PreTrainedConfig
from typing_extensions import TypedDict

from vlmtune.backbones.config_sizes import MODEL, check_sizes, check_weights_fill
from vlmtune.backbones.hub_connection import hub_or_cache
from vlmtune.backbones.open_clip.context import extend_context
from vlmtune.backbones.open_clip.weights import load_weights, preprocessing, warn_of_activation
from vlmtune.backbones.state_dicts import is_torchscript
from vlmtune.backbones.weight_checks import check_finite, named_openai, not_loaded
from vlmtune.backbones.word_tokenizer import WordTokenizer
from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.storage.files import read_json

CONFIG = "open_clip_config.json"
VOCABULARY = "vocabulary.txt"
HUB, LOCAL = "hf-hub:", "local-dir:"
WEIGHTS = ("*.safetensors", "*.bin", "*.pth")
BIG_VISION = (".npz", ".npy")  # weights of SigLIP as their authors publish them
RANDOM = "random"  # the only way to random weights: forgotten ones would go unnoticed


class OpenClipParts(NamedTuple):
    """A model with its tokenizer and its architecture config.

    `file` is the file, the sha256 and the architecture of weights from a file.
    """

    network: nn.Module
    tokenizer: Any
    config: dict[str, Any]
    file: dict[str, str] | None


def load(
    model: str,
    pretrained: str | None,
    precision: str,
    context_length: int | None = None,
    image_size: int | None = None,
) -> OpenClipParts:
    """Loads an open_clip model, its tokenizer and its architecture config."""
    name = locate(model)
    tag, file = _weights(name, pretrained)
    # open_clip reads the files of SigLIP's authors itself; other files are read and checked here.
    ours = file is not None and file.suffix not in BIG_VISION
    try:
        with _connection(name, tag), _quiet():
            config = _checked_config(name, model)
            _check_activation(name, tag, file, config)
            source = tag if ours or file is None else str(file)
            preparation = None if file is None else preprocessing(name)
            network = open_clip.create_model(
                name,
                pretrained=source,
                precision=precision,
                pretrained_text=file is None,
                force_image_size=image_size,
                force_preprocess_cfg=preparation,
            )
            if image_size is not None:
                _check_image_size(network, name, image_size)
                config["vision_cfg"] = config.get("vision_cfg", {}) | {"image_size": image_size}
            if context_length is not None:
                config["text_cfg"] = config.get("text_cfg", {}) | {"context_length": context_length}
            tokenizer = _tokenizer(name, config)
    except UserError:
        raise
    except Exception as error:  # open_clip raises anything from AssertionError to HTTP errors
        source = model if pretrained is None else f"{model} with pretrained={pretrained!r}"
        raise not_loaded(f"weights and tokenizer of {source}", error) from error
    if file is not None and ours:
        load_weights(network, file, name, resized=image_size is not None)
        if not config.get("quick_gelu", False):
            warn_of_activation(file, name)
    # NaN in one weight makes every score NaN, which a ranking would hide.
    check_finite(network.state_dict(), f"get the weights of {model} again")
    if context_length is not None:
        extend_context(network, name, context_length)
    source = None if file is None else _described(file, name)
    return OpenClipParts(network, tokenizer, config, source)


def _checked_config(name: str, model: str) -> dict[str, Any]:
    """The config of an architecture, which neither runs code nor is too large to build."""
    config = open_clip.get_model_config(name) or {}
    _check_code(config, name)
    check_sizes(config, MODEL, model)

    def build() -> nn.Module:
        return open_clip.create_model(
            name, load_weights=False, pretrained_text=False, device="meta"
        )

    check_weights_fill(build, _files(name), model)
    return config


def _described(file: Path, name: str) -> dict[str, str]:
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"file": file.name, "sha256": sha256, "architecture": name}


def _connection(name: str, tag: str | None) -> contextlib.AbstractContextManager[Any]:
    """A block that asks the hub, if it has the weights or the tokenizer of a model."""
    if name.startswith(HUB) or tag is not None:
        source = name if tag is None else f"{name} with pretrained={tag!r}"
        return hub_or_cache(source)
    text = (open_clip.get_model_config(name) or {}).get("text_cfg") or {}
    # With weights in a file, the tokenizer may still come from the hub.
    parts = {"hf_model_name", "hf_tokenizer_name"} & {*text}
    return hub_or_cache(f"the tokenizer of {name}") if parts else contextlib.nullcontext()


def _check_image_size(network: nn.Module, name: str, size: int) -> None:
    visual: Any = network.visual
    patch = getattr(visual, "patch_size", None)
    if patch is None or not hasattr(visual, "positional_embedding"):
        raise UserError(
            f"expected open_clip's own vision transformer for image_size {size}, got {name}: leave "
            "image_size out"
        )
    if size % patch[0] or size % patch[1]:
        raise UserError(
            f"expected image_size in patches of {patch[0]} x {patch[1]}, got {size}: change it"
        )


def locate(model: str) -> str:
    """Returns the name open_clip knows a model by; folders become absolute.

    Example:
        >>> locate("ViT-B-32")
        'ViT-B-32'
    """
    if model.startswith(HUB):
        return model
    builtin = model.replace("/", "-")
    if not model.startswith(LOCAL) and builtin in open_clip.list_models():
        return builtin
    folder = find_path(model.removeprefix(LOCAL))
    if folder is None and not model.startswith(LOCAL):
        # A typing error is likelier than a missing folder.
        near = difflib.get_close_matches(builtin, open_clip.list_models(), 3) or ["ViT-B-32"]
        raise UserError(
            f"expected an open_clip model, hf-hub:org/repo or a folder, got {model!r}: "
            f"did you mean {', '.join(near)}?"
        )
    if folder is None or not (folder / CONFIG).is_file():
        lacks = "" if folder is None else f", which has no {CONFIG}"
        raise UserError(
            f"expected a folder with {CONFIG} and weights, got {model!r}{lacks}: correct the path"
        )
    _check_folder(folder)
    return f"{LOCAL}{folder}"


class ModelConfig(TypedDict):
    """The sizes of an architecture, as open_clip names them."""

    embed_dim: int
    vision_cfg: dict[str, Any]
    text_cfg: dict[str, Any]


class FolderConfig(TypedDict):
    """The content of `open_clip_config.json` that vlmtune reads."""

    model_cfg: ModelConfig


def _check_folder(folder: Path) -> None:
    expected = "model_cfg with embed_dim, vision_cfg and text_cfg"
    read_json(folder / CONFIG, expected, "write it anew", FolderConfig)
    if not _files(f"{LOCAL}{folder}"):
        raise UserError(
            f"expected weights (open_clip_model.safetensors) in {folder}, got none: "
            "copy or download them there"
        )


def _files(name: str) -> list[Path]:
    """The files of weights in a local folder; none for other names."""
    if not name.startswith(LOCAL):
        return []
    folder = Path(name.removeprefix(LOCAL))
    files: list[Path] = []
    for pattern in WEIGHTS:
        files += folder.glob(pattern)
    return files


def _weights(name: str, pretrained: str | None) -> tuple[str | None, Path | None]:
    """Returns the tag or the file to load, checked; neither for a model's own or random weights."""
    builtin = not name.startswith((HUB, LOCAL))
    if pretrained is None and builtin:
        tags = list_pretrained_tags_by_model(name)
        some = tags if len(tags) <= 5 else [*tags[:5], "…"]
        shown = ", ".join(some) or "no tags exist"
        raise UserError(
            f"expected pretrained weights for {name}, got none: pass `pretrained` (on the command "
            f"line --pretrained) with a weights file, {RANDOM!r} for random weights, or a tag "
            f"({shown})"
        )
    if pretrained is None:
        return None, None
    if not builtin:
        raise UserError(
            f"expected pretrained=null for {name}, which brings its own weights, "
            f"got {pretrained!r}: leave pretrained out"
        )
    if pretrained == RANDOM:
        return None, None
    if tag := get_pretrained_cfg(name, pretrained):
        quick = bool((open_clip.get_model_config(name) or {}).get("quick_gelu", False))
        if tag.get("quick_gelu", False) and not quick:
            raise UserError(
                f"expected a model with QuickGELU for the weights {pretrained!r}, got {name}, "
                f"which would run them with GELU: use model {name + '-quickgelu'!r}"
            )
        return pretrained, None
    file = find_path(pretrained)
    if file is None or not file.is_file():
        raise UserError(
            f"expected a weights file or, for {name}, one of "
            f"{', '.join(list_pretrained_tags_by_model(name)) or 'no tags'}, got {pretrained!r}: "
            "correct pretrained"
        )
    return None, file


def _check_activation(
    name: str, tag: str | None, file: Path | None, config: dict[str, Any]
) -> None:
    """Refuses weights known to be OpenAI's if they would run with GELU."""
    if config.get("quick_gelu", False) or tag is not None:
        return
    if file is None:
        source, cure = name, "set quick_gelu to true in its config"
    else:
        source, cure = str(file), f"use model {name + '-quickgelu'!r}"
    # Of all CLIP weights only OpenAI's come as TorchScript.
    if named_openai(source.removeprefix(HUB)) or (file is not None and is_torchscript(file)):
        raise UserError(
            f"expected a model with QuickGELU for OpenAI's weights, got {source}, "
            f"which would run with GELU: {cure}"
        )


def _check_code(config: Mapping[str, Any], name: str) -> None:
    """Refuses a model whose text tower or tokenizer would run code; open_clip would let it."""
    text = config.get("text_cfg") or {}
    if not isinstance(text, Mapping):
        return
    tower = text.get("hf_model_name")
    if tower:
        described, _ = PreTrainedConfig.get_config_dict(tower)
        check_sizes(described, MODEL, str(tower))
        if "auto_map" in described:
            raise not_loaded(f"the text tower {tower}", ValueError("trust_remote_code"))
    if (text.get("tokenizer_kwargs") or {}).get("trust_remote_code"):
        raise UserError(
            f"expected a tokenizer without code of its author, got trust_remote_code in {CONFIG} "
            f"of {name}: read that code, then remove the entry from a local copy of the model"
        )


def _tokenizer(name: str, config: dict[str, Any]) -> Any:
    """The tokenizer of a model; ours if the model comes with a vocabulary."""
    text = config.get("text_cfg", {})
    vocabulary = _vocabulary(name)
    if vocabulary is None:
        options = {"context_length": text.get("context_length")}
        if text.get("hf_tokenizer_name"):
            # Else transformers asks on standard input whether to run the author's code.
            options["trust_remote_code"] = False
        tokenizer = open_clip.get_tokenizer(name, **options)
        rows = int(text.get("vocab_size", 49408))
        if isinstance(tokenizer, open_clip.SimpleTokenizer) and rows < tokenizer.vocab_size:
            raise UserError(
                f"expected {VOCABULARY} next to the weights of {name}, whose {rows} token "
                f"embeddings are too few for CLIP's {tokenizer.vocab_size} tokens, got none: "
                "copy it there"
            )
        return tokenizer
    # A blank line inside the file is an error of the tokenizer's; the last line break is none.
    words = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    tokenizer = WordTokenizer(words, int(text.get("context_length", 77)))
    rows = text.get("vocab_size", 49408)
    if tokenizer.vocab_size != rows:
        raise UserError(
            f"expected {rows - 3} words in {vocabulary} (vocab_size less "
            f"pad, start and end), got {len(tokenizer.words)}: they must be the model's own"
        )
    return tokenizer


def _vocabulary(name: str) -> Path | None:
    """The file of words in a local folder, a hub repository or its cache; None if out of reach."""
    if name.startswith(HUB):
        with contextlib.suppress(EntryNotFoundError):
            return Path(hf_hub_download(name.removeprefix(HUB), VOCABULARY))
        return None
    path = Path(name.removeprefix(LOCAL)) / VOCABULARY
    return path if name.startswith(LOCAL) and path.is_file() else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences open_clip's warnings about deliberate choices, such as random weights."""
    root = logging.getLogger()
    level = logging.root.manager.disable
    # open_clip logs through the root logger, which otherwise gets a handler for good.
    handler = logging.NullHandler()
    root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        root.removeHandler(handler)
