"""Sizes in the config of a model, checked before a library builds it.

In: a config, and a network without memory. Out: nothing, or a `UserError`.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlmtune.backbones.state_dicts import SUFFIXES
from vlmtune.errors import UserError

BOUNDS = {
    r".*(layers|depths?|repeats|blocks\w*|heads)": 1_000,
    r"(.*_)?(image_size|img_size|input_size|crop_size)|size|height|(short|long)est_edge": 4_096,
    r".*(hidden_size|intermediate_size|width|_dim|max_num_patches)": 65_536,
    r".*(context_length|position_embeddings|num_patches)": 1_048_576,
}
"""Names of sizes in the config of a model or an image processor, and the largest of any model."""
SPARE = 100_000_000  # values that fit into any memory, whatever the size of the weights


def check_sizes(config: Any, model: str) -> None:
    """Raises a `UserError` if a size is larger than in any known model.

    Example:
        >>> check_sizes({"vision_config": {"num_hidden_layers": 12}}, "a model")
    """
    for name, value in _numbers(config):
        for pattern, bound in BOUNDS.items():
            if value > bound and re.fullmatch(pattern, name):
                _refuse(f"{name} of at most {bound:,} in the config of", model, f"{value:,}")


def check_weights_fill(build: Callable[[], nn.Module], folder: Path, model: str) -> None:
    """Raises a `UserError` if the network that `build` makes is far larger than its weights.

    These lie in a folder; without any, as of a model of the hub, nothing is checked.
    """
    files = [file for file in folder.glob("*") if file.suffix in SUFFIXES]
    if not files:
        return
    # Here tensors have shapes and no memory.
    with torch.device("meta"):
        network = build()
    # A stored value has at least a byte, as int8 has.
    tensors = chain(network.parameters(), network.buffers())
    values = sum(tensor.numel() for tensor in tensors)
    given = sum(file.stat().st_size for file in files)
    if values > given + SPARE:
        got = f"one of {values:,} values for {given:,} bytes of weights"
        _refuse("a config that fits the weights of", model, got)


def _refuse(expected: str, model: str, got: str) -> None:
    raise UserError(
        f"expected {expected} {model}, got {got}: get its files again, or use another model"
    )


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
