"""The digest that names a model in feature stores, checkpoints and exports."""

import hashlib
import json
from typing import Any

import torch
from torch import nn


def digest(described: Any, model: nn.Module) -> str:
    """Returns the sha256 of a description and of all weights and buffers, with names and types.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> digest("a", layer) == digest("a", layer) != digest("b", layer)
        True
    """
    total = hashlib.sha256()
    total.update(json.dumps(described, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().cpu().contiguous().reshape(-1)
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(memoryview(flat.view(torch.uint8).numpy()))
    return total.hexdigest()
