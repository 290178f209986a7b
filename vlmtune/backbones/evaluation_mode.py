"""The one context without dropout and gradients.

In: modules. Out: nothing. Never: a lasting change of their modes.
"""

import contextlib
from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn


@contextlib.contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Sets evaluation mode without gradients; afterwards each module has its old mode again.

    Example:
        >>> dropout = nn.Dropout()
        >>> with evaluation_mode(dropout):
        ...     dropout.training, torch.is_grad_enabled()
        (False, False)
        >>> dropout.training
        True
    """
    parts = chain.from_iterable(module.modules() for module in modules)
    # Only modules in training mode are noted, so that the block gives each its own mode back.
    training = [part for part in parts if part.training]
    for part in training:
        part.training = False
    try:
        # Not inference_mode: a training step may read these features later.
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
