"""Sizes in the config of a model, checked before a library builds it.

In: a config, and a network without memory. Out: nothing, or a `UserError`. Never: a built model.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vlmtune.errors import UserError

MODEL = {
    r".*(layers|depths?|repeats|blocks\w*|heads)": 1_000,
    r"(.*_)?(image_size|img_size|input_size)": 4_096,
    r".*(hidden_size|intermediate_size|width|_dim)": 65_536,
    r".*(context_length|position_embeddings|num_patches)": 1_048_576,
}
"""Names of sizes in the config of a model, and the largest that any model has."""
PROCESSOR = {
    r"size|crop_size|height|width|(short|long)est_edge|(input|image)_size": 4_096,
    r"max_num_patches": 65_536,
}
"""Names of sizes in the config of an image processor, and the largest that any has."""
SPARE = 100_000_000  # values that fit into any memory, whatever the size of the weights


def check_sizes(config: Any, bounds: dict[str, int], model: str) -> None:
    """Raises a `UserError` if a size is larger than that of any model.

    Example:
        >>> check_sizes({"vision_config": {"num_hidden_layers": 12}}, MODEL, "a model")
    """
    for name, value in _numbers(config):
        for pattern, bound in bounds.items():
            if value > bound and re.fullmatch(pattern, name):
                raise UserError(
                    f"expected {name} of at most {bound:,} in the config of {model}, got "
                    f"{value:,}: get its files again, or use another model"
                )


def check_weights_fill(build: Callable[[], nn.Module], files: list[Path], model: str) -> None:
    """Raises a `UserError` if a model is far larger than the files of its weights.

    Args:
        build: Makes the network; it is called where tensors take no memory.
        files: The files; without any, nothing is checked.
        model: Its name, for the error.
    """
    if not files:
        return
    # Here tensors have shapes and no memory.
    with torch.device("meta"):
        network = build()
    # A stored value has at least a byte, as int8 has.
    values = sum(tensor.numel() for tensor in chain(network.parameters(), network.buffers()))
    given = sum(file.stat().st_size for file in files)
    if values > given + SPARE:
        raise UserError(
            f"expected a config that fits the weights of {model}, got one of {values:,} values for "
            f"{given:,} bytes of weights: get its files again, or use another model"
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
