"""Reads state dicts from files of other people's trainings.

In: a file. Out: its weights by name, or a `UserError`. Never: code of a pickle.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from vlmtune.errors import UserError, one_line
from vlmtune.storage.files import reading, regular

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
# The entry of a training checkpoint that holds the weights: of open_clip, and of common loops.
ENTRIES = ("state_dict", "model", "model_state_dict")
# What DataParallel, torch.compile and Lightning put before the name of each weight.
PREFIXES = ("module.", "_orig_mod.", "model.")
GLOBAL = re.compile(r"GLOBAL ([\w.]+)")  # how torch names a class that it refuses to load
# Some trainings save a loss or a metric as a number of numpy, which is a plain value too.
_NUMBER = np.float64().__reduce__()[0]
NUMBERS: list[Any] = [
    (_NUMBER, "numpy.core.multiarray.scalar"),
    (_NUMBER, "numpy._core.multiarray.scalar"),
    np.dtype,
    np.dtypes.Float64DType,
    np.dtypes.Float32DType,
    np.dtypes.Int64DType,
]


def read_state_dict(file: Path) -> dict[str, Tensor]:
    """Returns the weights of a training checkpoint or a bare state dict, by their names.

    A checkpoint holds them as `state_dict`, `model` or `model_state_dict`. Prefixes that all names
    share, such as `module.`, are cut. A warning lists other entries with weights (EMA copies),
    which are not used.

    Args:
        file: A safetensors file, or a pickle that holds tensors, plain values and numbers of numpy.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "epoch_1.pt"
        ...     torch.save({"epoch": 1, "state_dict": {"module.scale": torch.ones(())}}, path)
        ...     read_state_dict(path)
        {'scale': tensor(1.)}
    """
    with reading(file, "weights", "check the path, or get the file again"):
        load = load_file if regular(file).suffix == ".safetensors" else _read_pickle
        content: dict[Any, Any] = dict(load(file))
    state = content
    entries = [name for name in ENTRIES if isinstance(content.get(name), Mapping)]
    if entries:
        entry = entries[0]
        state = content.pop(entry)
        # An average of the weights (EMA) may be what the user wanted.
        others = [str(name) for name, value in content.items() if _weights(value)]
        if others:
            warnings.warn(
                f"{file.name} holds weights as {entry}, which are used, and as "
                f"{', '.join(others)}, which are not",
                stacklevel=2,
            )
    is_weights = all(isinstance(value, Tensor) for value in state.values())
    if not state or not is_weights:
        first_names = list(map(str, state))[:5]
        names = ", ".join(first_names) or "nothing"
        raise UserError(
            f"expected a state dict in {file}, by itself or as {', '.join(ENTRIES)}, got {names}: "
            "save only the weights"
        )
    named = {str(name): value for name, value in state.items()}
    return _without_prefixes(named)


def _weights(value: Any) -> bool:
    """Whether an entry of a checkpoint is a state dict; an optimizer's state is none."""
    if not isinstance(value, Mapping):
        return False
    if not all(isinstance(tensor, Tensor) for tensor in value.values()):
        return False
    return any("." in str(name) for name in value)


def _without_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in state):
            shorter = {name.removeprefix(prefix): value for name, value in state.items()}
            # Wrappers nest, as DataParallel around a compiled model.
            return _without_prefixes(shorter)
    return state


def _read_pickle(file: Path) -> Any:
    """Reads what `torch.save` wrote, if it is tensors and plain values; no code runs."""
    # Only zip files, as torch writes them since 2020, can be mapped into memory.
    archive = zipfile.is_zipfile(file)
    if archive and is_torchscript(file):
        raise UserError(
            f"expected tensors in {file}, got TorchScript, which is code: for OpenAI's CLIP pass "
            "the tag openai as pretrained, for a file you trust save "
            "torch.jit.load(FILE).state_dict()"
        )
    try:
        with torch.serialization.safe_globals(NUMBERS):
            return torch.load(file, map_location="cpu", weights_only=True, mmap=archive)
    except (pickle.UnpicklingError, RuntimeError) as error:
        name = GLOBAL.search(str(error))
        if name is None:
            raise ValueError(one_line(error)) from error
        raise UserError(
            f"expected tensors and plain values in {file}, got an object of {name[1]}, which needs "
            "code of the file: if you trust the file, load it with torch.load(FILE, "
            "weights_only=False) and save only its state_dict"
        ) from error


def is_torchscript(file: Path) -> bool:
    """Whether a file is a TorchScript archive."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any("/code/" in name for name in archive.namelist())
