"""Finds and loads Hugging Face models; the hub library downloads what its cache lacks.

In: a hub id or a folder. Out: the model, its tokenizer and its image processor, or a `UserError`.
Never: code of a repository; weights are tensors only.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from vlmtune.backbones.advice import supported_types
from vlmtune.backbones.config_sizes import check_sizes, check_weights_fill
from vlmtune.backbones.hub_connection import HUB_ID, hub_or_cache
from vlmtune.backbones.weight_checks import check_finite, loaded_whole
from vlmtune.config import find_path
from vlmtune.errors import UserError

CONFIG = "config.json"  # tells a folder of `save_pretrained` from any other
# Ends of the names of tables that older versions of the library saved with the weights.
TABLES = ("position_ids", "token_type_ids", "inv_freq", "masked_bias", "relative_position_index")
# Fields of a config that do not change what the model computes.
INCIDENTAL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}


class Loaded(NamedTuple):
    """A model with its tokenizer and its image processor."""

    network: PreTrainedModel
    tokenizer: Any
    processor: Any
    absent: frozenset[str] = frozenset()


def load(
    model: str,
    revision: str | None,
    kind: type[PreTrainedModel],
    dtype: torch.dtype,
    attention: str,
    optional: tuple[str, ...] = (),
) -> Loaded:
    """Loads a model, its tokenizer and its image processor from a folder or the hub's cache.

    Weights come from safetensors, or else from a pickle that may hold tensors only.
    """
    name = locate(model)
    # Without an answer the library asks on standard input whether to run the author's code.
    options: dict[str, Any] = {"trust_remote_code": False}
    if revision is not None:
        options["revision"] = revision
    # Else the library asks the hub, in a thread, to convert repositories without safetensors.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    connection: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if not Path(name).is_dir():
        connection = hub_or_cache(model)
    parts = f"weights, tokenizer and image processor of {model}"
    with loaded_whole(parts), connection, quiet():
        # A damaged config may ask for more memory than there is, before any weight is read.
        check_sizes(PreTrainedConfig.get_config_dict(name, **options)[0], model)
        config = AutoConfig.from_pretrained(name, **options)
        _check_type(model, config.model_type, kind)
        check_weights_fill(lambda: kind(config), Path(name), model)
        loaded: Any = kind.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation=attention,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are an error below, with a name
            **options,
        )
        network, report = loaded
        # A part without any weights is left out; a part with some of them is an error.
        absent = _dropped(network, report, optional)
        _check_weights(model, network, report)
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        # By PIL, as the checkpoints were trained; torchvision resizes a little differently.
        processor = AutoImageProcessor.from_pretrained(name, backend="pil", **options)
        check_sizes(processor.to_dict(), model)
    return Loaded(network.eval().requires_grad_(False), tokenizer, processor, absent)


def locate(model: str, others: str = "") -> str:
    """Returns a hub id as it is, and a folder as an absolute path.

    An error says which `others` might have been named, too.

    Example:
        >>> locate("openai/clip-vit-base-patch32")
        'openai/clip-vit-base-patch32'
    """
    folder = find_path(model)
    if folder is None and HUB_ID.fullmatch(model):
        return model
    if folder is None or not (folder / CONFIG).is_file():
        raise UserError(
            f"expected {others}a hub id (org/repo) or a folder with {CONFIG} and weights, got "
            f"{model!r}: check the spelling, or save the model with save_pretrained"
        )
    return str(folder)


def describe(loaded: Loaded) -> list[Any]:
    """Returns config, image processor and tokenizer as JSON values, for fingerprints."""
    config = _without(loaded.network.config.to_dict(), INCIDENTAL)
    return [config, loaded.processor.to_dict(), described_tokenizer(loaded.tokenizer)]


def described_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Returns a tokenizer as JSON values, for fingerprints."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    described = json.loads(backend.to_str())
    # Cutting and padding of the last batch do not belong to the tokenizer.
    described["truncation"] = described["padding"] = None
    # SigLIP's saved tokenizer lower-cases first; its tower does so in any case.
    normalizer = described.get("normalizer") or {}
    steps = normalizer.get("normalizers") or []
    if steps and steps[0] == {"type": "Lowercase"} and len(steps) <= 2:
        described["normalizer"] = steps[1] if len(steps) == 2 else None
    return described


def _without(value: Any, names: set[str]) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, inner in value.items():
        if name not in names:
            kept[name] = _without(inner, names)
    return kept


def _check_type(model: str, type_name: str, kind: type[PreTrainedModel]) -> None:
    expected = kind.config_class.model_type if kind.config_class else ""
    if type_name != expected:
        types = supported_types()
        advice = f"use {types[type_name]}" if type_name in types else "use another model"
        raise UserError(
            f"expected a model of type {expected}, got {model} of type {type_name} (supported are "
            f"{', '.join(types)}): {advice}"
        )


def _dropped(
    network: PreTrainedModel, report: dict[str, Any], optional: tuple[str, ...]
) -> frozenset[str]:
    """Removes optional parts without weights from the network and from the report."""
    missing = set(report.get("missing_keys") or ())
    names = set(network.state_dict())
    absent = set()
    for part in optional:
        inside = {name for name in names if name == part or name.startswith(f"{part}.")}
        if inside and inside <= missing:
            setattr(network, part, None)
            absent.add(part)
            missing -= inside
        elif not inside:
            absent.add(part)
    report["missing_keys"] = missing
    return frozenset(absent)


def _check_weights(model: str, network: nn.Module, report: dict[str, Any]) -> None:
    """Refuses weights that do not fill the model, are not finite, or change what it computes."""
    # The library would fill in random weights for these.
    missing = sorted(report.get("missing_keys") or ())
    shapes = report.get("mismatched_keys") or ()
    mismatched = sorted(name for name, *_ in shapes)
    if faulty := missing or mismatched:
        fault = "missing" if missing else "mismatched"
        raise UserError(
            f"expected all weights of {model}, got {len(faulty)} {fault} keys, first {faulty[0]}: "
            "use the whole checkpoint of this model"
        )
    # The library would leave out the weights of more layers or of LoRA.
    modules = {name for name, _ in network.named_modules()}
    surplus = []
    for name in sorted(map(str, report.get("unexpected_keys") or ())):
        if not name.endswith(TABLES) and _changes(name, modules):
            surplus.append(name)
    if surplus:
        raise UserError(
            f"expected the weights of {model} alone, got {len(surplus)} more, first {surplus[0]}: "
            "write the number of layers in config.json, or merge LoRA and adapters into the "
            "weights before you save them"
        )
    check_finite(network.state_dict(), f"get the weights of {model} again")


def _changes(name: str, modules: set[str]) -> bool:
    """Whether a weight that the model lacks belongs to its layers; heads of other tasks do not."""
    parts = name.lower().split(".")
    for i, part in enumerate(parts):
        # A number behind the name of a module of the model is one of its layers.
        is_layer = part.isdigit() and ".".join(parts[:i]) in modules
        if is_layer or "lora" in part or "adapter" in part:
            return True
    return False


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the library's reports, which are checked here, and its progress bars."""
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
