"""Callback that compiles the blocks of the towers, by `torch.compile`.

In: a backbone with towers. Out: the same computation in fewer, larger operations.
Never: another name of a weight: checkpoints and exports stay as they are.
"""

from typing import Literal

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from vlmtune.training.module import adaptation

Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class CompileTowers(Callback):
    """Compiles each block of the image tower and of the text tower before the first step.

    Blocks of one tower have one structure, so the compiler works once a tower, in the first step
    (and once more when the length of captions changes first). Adapters, fusion layers and towers
    that do not run block by block stay as they are.

    Args:
        mode: As in `torch.compile`.

    Example:
        >>> CompileTowers().mode
        'default'
    """

    def __init__(self, mode: Mode = "default") -> None:
        self.mode: Mode = mode

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        backbone = adaptation(pl_module).backbone
        for tower in (backbone.image_tower, backbone.text_tower):
            if tower is None:
                continue
            for block in tower.blocks:
                block.compile(mode=self.mode)
