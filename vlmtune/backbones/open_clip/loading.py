"""Finds and loads open_clip models; open_clip downloads weights that its cache lacks.

In: a model name, and a tag or a weights file. Out: the model, its tokenizer and its config.
Never: OpenAI's weights with an activation that they were not trained with.
"""

import contextlib
import difflib
import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import open_clip
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from open_clip.hf_model import HFTextEncoder
from open_clip.model import to_2tuple
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from torch import nn
from transformers import PreTrainedConfig

from vlmtune.backbones.config_sizes import check_sizes, check_weights_fill
from vlmtune.backbones.hub_connection import hub_or_cache
from vlmtune.backbones.open_clip.context import extend_context
from vlmtune.backbones.open_clip.weights import load_weights, preprocessing, warn_of_activation
from vlmtune.backbones.state_dicts import SUFFIXES, is_torchscript
from vlmtune.backbones.weight_checks import (
    check_finite,
    check_none,
    file_facts,
    loaded_whole,
    named_openai,
)
from vlmtune.backbones.word_tokenizer import WordTokenizer
from vlmtune.config import find_path
from vlmtune.errors import UserError

CONFIG = "open_clip_config.json"
VOCABULARY = "vocabulary.txt"  # beside weights whose tokenizer is a `WordTokenizer`
HUB = "hf-hub:"  # before the id of a repository
LOCAL = "local-dir:"  # before the path of a folder
BIG_VISION = (".npz", ".npy")  # weights of SigLIP as their authors publish them
RANDOM = "random"  # the only way to random weights: forgotten ones would go unnoticed


@contextlib.contextmanager
def same_random_weights(pretrained: str | None) -> Iterator[None]:
    """Draws random weights from one seed, so that what is trained over them finds them again."""
    if pretrained != RANDOM:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # that of the CPU, where models are made
        yield


def load(
    model: str,
    pretrained: str | None,
    precision: str,
    context_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> tuple[nn.Module, Any, dict[str, Any], dict[str, str] | None]:
    """Loads a model, its tokenizer, its architecture config, and the facts of a weights file."""
    name = locate(model)
    tag, file = _weights(name, pretrained)
    # open_clip reads the files of SigLIP's authors itself; other files are read and checked here.
    ours = file is not None and file.suffix not in BIG_VISION
    given = tag if ours or file is None else str(file)
    source = model if pretrained is None else f"{model} with pretrained={pretrained!r}"
    parts = f"weights and tokenizer of {source}"
    reproducible = same_random_weights(pretrained)
    with loaded_whole(parts), _connection(name, tag), quiet(), reproducible:
        config = _checked_config(name, model)
        _check_activation(name, tag, file, config)
        preparation = None if file is None else preprocessing(name)
        network = open_clip.create_model(
            name,
            pretrained=given,
            precision=precision,
            pretrained_text=file is None,
            # Else a hub repository or a folder without weights would give random ones.
            require_pretrained=not ours and pretrained != RANDOM,
            force_image_size=image_size,
            force_preprocess_cfg=preparation,
        )
        if image_size is not None:
            _check_image_size(network, name, image_size)
            config["vision_cfg"] = config.get("vision_cfg", {}) | {"image_size": image_size}
        if context_length is not None:
            config["text_cfg"] = config.get("text_cfg", {}) | {"context_length": context_length}
        tokenizer = _tokenizer(name, config)
    if file is not None and ours:
        load_weights(network, file, name, resized=image_size is not None)
        if not config.get("quick_gelu", False):
            warn_of_activation(file, name)
    text = getattr(network, "text", None)
    if precision == "bf16" and isinstance(text, HFTextEncoder):
        # open_clip leaves norms and tables in float32, which a tower of transformers cannot run.
        text.to(torch.bfloat16)
    # NaN in one weight makes every score NaN, which a ranking would hide.
    check_finite(network.state_dict(), f"get the weights of {model} again")
    if context_length is not None:
        extend_context(network, name, context_length)
    facts = None if file is None else file_facts(file, name)
    return network, tokenizer, config, facts


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
    if folder is None or not (folder / CONFIG).is_file():
        # A folder resembles no name, but a name that is misspelt does.
        near = difflib.get_close_matches(builtin, open_clip.list_models(), 3)
        fix = f"did you mean {', '.join(near)}?" if near else "check the name or the folder"
        raise UserError(
            f"expected an open_clip model, hf-hub:org/repo or a folder with {CONFIG} and weights, "
            f"got {model!r}: {fix}"
        )
    return f"{LOCAL}{folder}"


def _weights(name: str, pretrained: str | None) -> tuple[str | None, Path | None]:
    """Returns the tag or the file to load; neither for a model's own or random weights."""
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
    if not builtin:
        check_none(name, pretrained)
    if pretrained is None or pretrained == RANDOM:
        return None, None
    if get_pretrained_cfg(name, pretrained):
        return pretrained, None
    file = find_path(pretrained)
    if file is None or not file.is_file():
        path = Path.cwd() / Path(pretrained).expanduser()
        if path.suffix in (*SUFFIXES, *BIG_VISION):
            raise UserError(
                f"expected the weights file {path.name} in {path.parent}, got no such file: copy "
                f"it there, or give its path: {name}:FILE, or `pretrained` of the backbone"
            )
        tags = ", ".join(list_pretrained_tags_by_model(name))
        or_tag = f" or, for {name}, one of {tags}" if tags else f" for {name}, which has no tags"
        raise UserError(
            f"expected a weights file{or_tag}, got {pretrained!r}: correct it, or give the path of "
            "the file"
        )
    return None, file


def _connection(name: str, tag: str | None) -> contextlib.AbstractContextManager[Any]:
    """A block that asks the hub, if it has the weights or the tokenizer of a model."""
    if name.startswith(HUB) or tag is not None:
        source = name if tag is None else f"{name} with pretrained={tag!r}"
        return hub_or_cache(source)
    config = open_clip.get_model_config(name) or {}
    text = config.get("text_cfg") or {}
    # With weights in a file, the tokenizer may still come from the hub.
    parts = {"hf_model_name", "hf_tokenizer_name"} & {*text}
    return hub_or_cache(f"the tokenizer of {name}") if parts else contextlib.nullcontext()


def _checked_config(name: str, model: str) -> dict[str, Any]:
    """The config of an architecture, which neither runs code nor is too large to build."""
    config = open_clip.get_model_config(name) or {}
    check_sizes(config, model)
    text = config.get("text_cfg") or {}
    tower = {}
    if text.get("hf_model_name"):
        tower, _ = PreTrainedConfig.get_config_dict(text["hf_model_name"])
        check_sizes(tower, model)
    # open_clip would run the code of either.
    options = text.get("tokenizer_kwargs") or {}
    if "auto_map" in tower or options.get("trust_remote_code"):
        raise ValueError("its text tower or tokenizer needs trust_remote_code")
    if name.startswith(LOCAL):
        empty = {"load_weights": False, "pretrained_text": False, "device": "meta"}
        build = partial(open_clip.create_model, name, **empty)
        check_weights_fill(build, Path(name.removeprefix(LOCAL)), model)
    return config


def _check_activation(
    name: str, tag: str | None, file: Path | None, config: dict[str, Any]
) -> None:
    """Refuses weights known to be trained with QuickGELU if they would run with GELU."""
    if config.get("quick_gelu", False):
        return
    cure = f"use model {name + '-quickgelu'!r}"
    if tag is not None:
        source = tag
        quick = get_pretrained_cfg(name, tag).get("quick_gelu", False)
    elif file is not None:
        # Of all CLIP weights only OpenAI's come as TorchScript.
        source = str(file)
        quick = named_openai(str(file)) or is_torchscript(file)
    else:
        source = name
        quick = named_openai(name.removeprefix(HUB))
        cure = "set quick_gelu to true in its config"
    if quick:
        raise UserError(
            f"expected a model with QuickGELU for the weights {source}, got {name}, which would "
            f"run them with GELU: {cure}"
        )


def _check_image_size(network: nn.Module, name: str, size: int | tuple[int, int]) -> None:
    visual: Any = network.visual
    patch = getattr(visual, "patch_size", None)
    native = hasattr(visual, "positional_embedding")
    height, width = to_2tuple(size)
    # The last rows of an image that do not fill a patch would be cut.
    if patch is None or not native or height % patch[0] or width % patch[1]:
        raise UserError(
            f"expected image_size in whole patches of open_clip's own vision transformer, got "
            f"{size} for {name} with patches of {patch}: choose a multiple, or leave it out"
        )


def _tokenizer(name: str, config: dict[str, Any]) -> Any:
    """The tokenizer of a model; ours if the model comes with a vocabulary."""
    text = config.get("text_cfg", {})
    rows = int(text.get("vocab_size", 49408))
    vocabulary = _vocabulary(name)
    if vocabulary is None:
        options = {"context_length": text.get("context_length")}
        if text.get("hf_tokenizer_name"):
            # Else transformers asks on standard input whether to run the author's code.
            options["trust_remote_code"] = False
        tokenizer = open_clip.get_tokenizer(name, **options)
        fits = not isinstance(tokenizer, open_clip.SimpleTokenizer) or rows >= tokenizer.vocab_size
        words_there = "no such file"
    else:
        # A blank line inside the file is an error of the tokenizer's; the last line break is none.
        content = vocabulary.read_text(encoding="utf-8")
        words = content.removesuffix("\n").split("\n")
        tokenizer = WordTokenizer(words, int(text.get("context_length", 77)))
        # With other words than in training, the id of the end token would be another.
        fits = tokenizer.vocab_size == rows
        words_there = f"{len(words)} words"
    if not fits:
        raise UserError(
            f"expected {VOCABULARY} with {rows - 3} words next to the weights of {name}, which "
            f"have {rows} token embeddings, got {words_there}: copy the model's own file there"
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
def quiet() -> Iterator[None]:
    """Silences a library's warnings about deliberate choices, such as random weights."""
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
