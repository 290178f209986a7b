"""The one context without dropout and gradients.

In: modules. Out: nothing. Never: a lasting change of their modes.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Sets evaluation mode without gradients; afterwards each submodule has its old mode again.

    Example:
        >>> dropout = nn.Dropout()
        >>> with evaluation_mode(dropout):
        ...     dropout.training, torch.is_grad_enabled()
        (False, False)
        >>> dropout.training
        True
    """
    training = [part for module in modules for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        # Not inference_mode: a training step may read these features later.
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
