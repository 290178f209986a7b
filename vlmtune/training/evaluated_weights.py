"""Which weights are evaluated during a training: averaged ones, and whole ones.

In: a trainer and its module. Out: the module with these weights, inside a block.
Never: a change of what is trained.
"""

import contextlib
from collections.abc import Iterator
from types import MethodType
from typing import Any

import pytorch_lightning as pl

from vlmtune.training.module import AdaptationModule


@contextlib.contextmanager
def evaluated_weights(trainer: pl.Trainer, module: AdaptationModule) -> Iterator[None]:
    """Puts averaged weights into the module inside the block, if the trainer has an `EMA`.

    Weights that a strategy holds in parts are whole there.
    """
    with contextlib.ExitStack() as stack:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            # By its method: most runs have no `EMA`, and do not load it.
            averaged: Any = getattr(callback, "averaged", None)
            if isinstance(averaged, MethodType):
                stack.enter_context(averaged(trainer, module))
        if whole := getattr(trainer.strategy, "whole_weights", None):
            stack.enter_context(whole())
        yield
