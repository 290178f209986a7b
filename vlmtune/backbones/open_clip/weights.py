"""Puts weights of a file into an open_clip model, all of them and nothing else.

In: a model of a named architecture, and a file. Out: the model with these weights.
Never: a tensor that is resized, filled with zeros or left out without a warning.
"""

import warnings
from pathlib import Path

import open_clip
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict, resize_pos_embed
from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model
from torch import Tensor, nn

from vlmtune.backbones.open_clip.lora import merged_lora
from vlmtune.backbones.state_dicts import read_state_dict
from vlmtune.errors import UserError

# Entries of state dicts that are not weights: sizes of OpenAI's models, and positions counted up.
NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
NO_WEIGHTS += ("text.transformer.embeddings.position_ids",)
SCALARS = ("logit_scale", "logit_bias")  # some trainings save a row of one number
PREPROCESSING = ("mean", "std", "interpolation", "resize_mode")  # what a tag says of images
QUICK = "-quickgelu"  # ends the names of architectures with that activation
HINTS = {
    "vision_model.": "these are weights of transformers, so pass the hub id or the folder",
    "lora_": "merge its LoRA layers into the weights before you save them",
    "ema": "save only the copy that you want",
}


def load_weights(network: nn.Module, file: Path, name: str, resized: bool = False) -> None:
    """Loads the weights of `file` into a network of the architecture `name`.

    `resized` interpolates the image tower's positions to the image size of the network.
    """
    state = _named_as(network, merged_lora(read_state_dict(file), file))
    if resized:
        # This is open_clip's own interpolation, which it applies to its tags.
        resize_pos_embed(state, network)  # type: ignore[arg-type]
    if "logit_bias" in state and "logit_bias" not in network.state_dict():
        # SigLIP weights under a CLIP name: a constant on all scores changes no ranking.
        bias = float(state.pop("logit_bias"))
        warnings.warn(
            f"{file.name} has logit_bias {bias:.4g}, which {name} does not use: scores lack this "
            "constant, their order stays",
            stacklevel=2,
        )
    check_weights(network, state, file, name)
    network.load_state_dict(state)


def preprocessing(name: str) -> dict[str, object]:
    """What all published weights of an architecture agree on: mean, std, interpolation, resizing.

    A weights file does not say how its images were prepared.

    Example:
        >>> preprocessing("ViT-B-16-SigLIP")["resize_mode"], preprocessing("ViT-S-32-alt")
        ('squash', {})
    """
    published = [get_pretrained_cfg(name, tag) for tag in list_pretrained_tags_by_model(name)]
    agreed: dict[str, object] = {}
    for field in PREPROCESSING:
        values = [config.get(field) for config in published]
        if not values or values[0] is None:
            continue
        if values.count(values[0]) == len(values):
            agreed[field] = values[0]
    return agreed


def warn_of_activation(file: Path, name: str) -> None:
    """Warns where only the name of the architecture chooses between GELU and QuickGELU.

    Weights have the same names and shapes with both, and lose accuracy with the wrong one.
    """
    if f"{name}{QUICK}" in open_clip.list_models():
        warnings.warn(
            f"{name} computes with GELU, and {file.name} does not say which activation it was "
            f"trained with: weights fine-tuned from OpenAI's (NegCLIP, CE-CLIP) need {name}{QUICK}",
            stacklevel=2,
        )


def _named_as(network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames weights of older versions and of MobileCLIP's authors as open_clip does."""
    state = convert_state_dict(network, state)  # type: ignore[arg-type]
    if "positional_embedding" in state and not hasattr(network, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    wanted = network.state_dict()
    named = {}
    for name, value in state.items():
        if name in NO_WEIGHTS and name not in wanted:
            continue
        scalar = name in SCALARS and name in wanted
        if scalar and value.numel() == wanted[name].numel() == 1:
            value = value.reshape(wanted[name].shape)
        named[name] = value
    return named


def check_weights(network: nn.Module, state: dict[str, Tensor], file: Path, name: str) -> None:
    """Raises a `UserError` unless a state dict has exactly the names and sizes of a network."""
    wanted = network.state_dict()
    others = [key for key in state if key not in wanted]
    wrong = []
    for key, value in wanted.items():
        if key not in state or state[key].shape != value.shape:
            wrong.append(key)
    if not (wrong or others):
        return
    # One wrong weight tells enough; a hint tells what the file is instead.
    difference = f"{len(others)} more, first {others[0]}" if others else ""
    advice = "name the architecture of these weights, or save the file without other weights"
    if wrong:
        first = wrong[0]
        there = f"size {_size(state[first])}" if first in state else "none"
        difference = (
            f"{there} for {first}, whose size is {_size(wanted[first])} "
            f"({len(wrong)} of {len(wanted)} differ)"
        )
    for part, hint in HINTS.items():
        if part in "\n".join(others):
            advice = hint
            break
    raise UserError(f"expected only the weights of {name} in {file}, got {difference}: {advice}")


def _size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "1"
