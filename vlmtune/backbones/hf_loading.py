"""Finding and loading Hugging Face models, with every way to go wrong told in one line."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from vlmtune.config import find_path
from vlmtune.errors import UserError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
CONFIG = "config.json"
# Of a config: where and by what it was written, not what the model computes.
INCIDENTAL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}


class Loaded(NamedTuple):
    """A model with what it reads images and captions by.

    Attributes:
        network: The model, frozen and in evaluation mode.
        tokenizer: Its tokenizer.
        processor: Its image processor, which works on PIL images.
        absent: Those of the optional parts that the weights lack; the network has None there.
    """

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

    Weights come from safetensors where there are any, else from a pickle that may hold tensors
    only; code of a repository is never run.

    Args:
        model: Hub id or folder.
        revision: Commit, branch or tag of a hub id; None for its main branch.
        kind: Class of the model.
        dtype: Type of the weights.
        attention: "sdpa" or "eager".
        optional: Attributes of the model, such as heads, that the weights may lack as a whole.

    Raises:
        UserError: There is no such model, it is of another kind, or files are missing or damaged.
    """
    name = resolve(model)
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    # The library else asks the hub, in a thread, to convert repositories without safetensors.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    try:
        with _quiet():
            _check_type(model, AutoConfig.from_pretrained(name, **options).model_type, kind)
            made: Any = kind.from_pretrained(
                name,
                dtype=dtype,
                attn_implementation=attention,
                weights_only=True,
                output_loading_info=True,
                **options,
            )
            network, report = made
            absent = _dropped(network, report, optional)
            _check_weights(model, report)
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
            processor = AutoImageProcessor.from_pretrained(name, backend="pil", **options)
    except UserError:
        raise
    except Exception as error:  # the library fails with anything from OSError to KeyError
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"expected weights, tokenizer and image processor of {model}, got "
            f"{type(error).__name__}: {reason}: check the name, the files and, for hub models, "
            "the network"
        ) from error
    return Loaded(network.eval().requires_grad_(False), tokenizer, processor, absent)


def resolve(model: str) -> str:
    """Returns a hub id as it is, and a folder as an absolute path.

    Raises:
        UserError: It is neither.

    Example:
        >>> resolve("openai/clip-vit-base-patch32")
        'openai/clip-vit-base-patch32'
    """
    folder = find_path(model)
    if folder is None:
        if HUB_ID.fullmatch(model):
            return model
        raise UserError(
            f"expected a hub id (org/repo) or a folder with {CONFIG} and weights, got {model!r}: "
            "correct it"
        )
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"expected a folder with {CONFIG} and weights, got {model!r}, which has no {CONFIG}: "
            "correct the path, or save the model with save_pretrained"
        )
    return str(folder)


def describe(loaded: Loaded) -> list[Any]:
    """Returns what a model computes beside its weights, as JSON has it, for fingerprints."""
    config = _without(loaded.network.config.to_dict(), INCIDENTAL)
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if backend is None:
        tokenizer = loaded.tokenizer.get_vocab()
    else:  # how the last batch was cut and filled up is no part of the tokenizer
        tokenizer = json.loads(backend.to_str()) | {"truncation": None, "padding": None}
    return [config, loaded.processor.to_dict(), tokenizer]


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, names) for k, v in value.items() if k not in names}
    return value


def _check_type(model: str, found: str, kind: type[PreTrainedModel]) -> None:
    expected = kind.config_class.model_type if kind.config_class else ""
    if found != expected:
        raise UserError(
            f"expected a model of type {expected}, got {model} of type {found}: use the backbone "
            "of its type"
        )


def _dropped(
    network: PreTrainedModel, report: dict[str, Any], optional: tuple[str, ...]
) -> frozenset[str]:
    """Takes the optional parts that have no weights out of the network and out of the report."""
    missing, names = set(report.get("missing_keys") or ()), set(network.state_dict())
    absent = set()
    for part in optional:
        own = {name for name in names if name == part or name.startswith(f"{part}.")}
        if own and own <= missing:
            setattr(network, part, None)
            absent.add(part)
            missing -= own
        elif not own:
            absent.add(part)
    report["missing_keys"] = missing
    return frozenset(absent)


def _check_weights(model: str, report: dict[str, Any]) -> None:
    """Refuses weights that do not fill the model, which the library would make up at random."""
    for fault in ("missing_keys", "mismatched_keys"):
        if names := sorted(str(name) for name in report.get(fault) or ()):
            raise UserError(
                f"expected all weights of {model}, got {len(names)} {fault.replace('_', ' ')}, "
                f"first {names[0]}: use the whole checkpoint of this model"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the library from reporting what is checked here, and from drawing bars."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
