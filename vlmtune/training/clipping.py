"""Clips gradients also where Lightning refuses to.

In: an optimizer's gradients. Out: the same, clipped. Never: another rule than Lightning's.
"""

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.utilities import GradClipAlgorithmType
from typing_extensions import override


class ClipsGradients(LightningModule):
    """A module that clips gradients in mixed precision also for a fused optimizer."""

    @override
    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips gradients as Lightning does; with bf16-mixed also for a fused optimizer."""
        precision = self.trainer.precision_plugin
        if type(precision) is not MixedPrecision or precision.scaler is not None:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        # Lightning refuses a fused optimizer, as it unscales gradients itself; bf16 has no scale.
        algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
        Precision.clip_gradients(precision, optimizer, gradient_clip_val or 0, algorithm)
