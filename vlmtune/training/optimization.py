"""Parameter groups, the learning-rate schedule and the clipping of `AdaptationModule`.

In: trained parameters, and the length of the run. Out: groups for an optimizer, and a schedule.
Never: an optimizer.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.plugins.precision import MixedPrecision, Precision
from pytorch_lightning.utilities import GradClipAlgorithmType
from torch import nn
from typing_extensions import override


def parameter_groups(
    trained: list[nn.Parameter], scales: Iterable[tuple[nn.Parameter, float]]
) -> list[dict[str, Any]]:
    """Returns groups of one weight decay and learning rate: matrices, then vectors without decay.

    `scales` are factors on the learning rate of some parameters; groups have them as `scale`.

    Example:
        >>> matrix, bias = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
        >>> [group["scale"] for group in parameter_groups([bias, matrix], [(matrix, 0.1)])]
        [0.1, 1.0]
    """
    scale_of = {id(parameter): scale for parameter, scale in scales}
    # Matrices come first, and among them the highest learning rate.
    by_kind: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for parameter in trained:
        # Decay would pull biases and norms to zero, which regularises nothing.
        vector = parameter.ndim <= 1
        scale = scale_of.get(id(parameter), 1.0)
        by_kind.setdefault((vector, -scale), []).append(parameter)
    groups: list[dict[str, Any]] = []
    for kind in sorted(by_kind):
        vector, negative_scale = kind
        group: dict[str, Any] = {"params": by_kind[kind], "scale": -negative_scale}
        if vector:
            group["weight_decay"] = 0.0
        groups.append(group)
    return groups


def warmup_cosine(steps: int, warmup: float, final: float) -> Callable[[int], float]:
    """Returns the learning rate of a step as a fraction of the peak: a linear rise, then a cosine.

    It rises over the fraction `warmup` of the steps, and falls to `final`.

    Example:
        >>> [warmup_cosine(6, 0.5, 0.2)(step) for step in (2, 4, 6, 8)]
        [1.0, 0.8, 0.2, 0.2]
    """
    rise = max(1, round(warmup * steps))
    fall = max(1, steps - rise)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        progress = min(1.0, (step - rise) / fall)
        cosine = (1 + math.cos(math.pi * progress)) / 2  # from 1 to 0
        return final + (1 - final) * cosine

    return factor


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
