"""An exponential moving average of the trained weights.

In: the weights after each step. Out: their average, for evaluation, checkpoints and exports.
Never: a change of training itself.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pytorch_lightning as pl
import torch
from annotated_types import Ge, Lt
from pydantic import NonNegativeInt, PositiveInt
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from vlmtune.adapters.trained_state import trained_state
from vlmtune.training.checkpointing import AVERAGE, LIVE
from vlmtune.training.module import AdaptationModule, adaptation
from vlmtune.types import Batch


class EMA(Callback):
    r"""Averages the trained weights, and uses the average for everything but training.

    $\bar\theta_k = d\, \bar\theta_{k-1} + (1 - d)\, \theta_k$ with $\theta_k$ the weights after the
    k-th counted step and $\bar\theta_1 = \theta_1$. Benchmarks, validation losses, checkpoints,
    exports and the module after training have $\bar\theta$. Training continues with $\theta$, which
    a checkpoint also holds: a resumed run repeats an uninterrupted one, and a run resumed without
    `EMA` repeats one that never had it.

    `ModelCheckpoint(save_weights_only=True)` calls no callback, so its file has $\theta$. Before
    the first counted step $\theta$ is used. Integers are not averaged, and frozen weights are
    neither copied nor saved. (Lightning's `EMAWeightAveraging` copies the module with its frozen
    backbone, and finds nothing to save if `state_dict` holds the trained weights only.)

    Source: Polyak and Juditsky 1992, as an exponential average in Tarvainen and Valpola 2017.

    Args:
        decay: d.
        every_n_steps: Optimizer steps between two counted ones.
        start: First steps, which are not counted.
    """

    def __init__(
        self,
        decay: Annotated[float, Ge(0), Lt(1)] = 0.999,
        every_n_steps: PositiveInt = 1,
        start: NonNegativeInt = 0,
    ) -> None:
        self.decay = decay
        self.every_n_steps = every_n_steps
        self.start = start
        self._module: pl.LightningModule | None = None  # whose average it is
        self._average: dict[str, Tensor] = {}  # empty before the first counted step
        self._aside: dict[str, Tensor] | None = None  # live weights while the average is in place
        self._seen = 0  # the last step that was added

    @contextlib.contextmanager
    def averaged(self, trainer: pl.Trainer, module: AdaptationModule) -> Iterator[None]:
        """Puts the average of the present step into the module inside the block."""
        self._update(trainer, module)
        changed = self._put_in(module)
        try:
            yield
        finally:
            if changed:
                self._put_back(module)

    def _update(self, trainer: pl.Trainer, module: AdaptationModule) -> None:
        """Adds the weights of a step to the average, once."""
        step = trainer.global_step
        # Several hooks may ask for one step; only the first adds it.
        already_added = step <= self._seen
        if already_added or self._aside is not None or module is not self._module:
            return
        self._seen = step
        steps_since_start = step - self.start
        if steps_since_start <= 0 or steps_since_start % self.every_n_steps:
            return
        for name, value in _averaged_part(module).items():
            mean = self._average.get(name)
            if mean is None:
                self._average[name] = value.clone()
            else:
                mean = mean.to(value.device)  # on a resumed run it comes from the CPU
                self._average[name] = mean.lerp_(value, 1 - self.decay)

    def _put_in(self, module: AdaptationModule) -> bool:
        if not self._average or self._aside is not None or module is not self._module:
            return False
        self._aside = {}
        for name, value in _state(module).items():
            self._aside[name] = value.clone()
        _set(module, self._average)
        return True

    def _put_back(self, module: AdaptationModule) -> None:
        if self._aside is not None:
            _set(module, self._aside)
            self._aside = None

    # -- when -----------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Starts a new average, or continues if the same module is trained further."""
        if stage != "fit":
            return
        if self._module is pl_module:
            self._put_back(adaptation(pl_module))
        else:
            self._average = {}
            self._aside = None
        self._module = pl_module
        self._seen = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Adds the weights of the step."""
        self._update(trainer, adaptation(pl_module))

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Validates the average."""
        self._put_in(adaptation(pl_module))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Puts the live weights back."""
        if trainer.state.fn == "fit":
            self._put_back(adaptation(pl_module))

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leaves the average in the module."""
        self._put_in(adaptation(pl_module))

    # -- checkpoints ----------------------------------------------------------------------------

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Makes the average the checkpoint's weights, beside the live ones."""
        self._update(trainer, adaptation(pl_module))
        if self._average:
            live = self._aside or checkpoint["state_dict"]
            checkpoint[LIVE] = live
            checkpoint["state_dict"] = {**live, **self._average}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restores the average if training continues; the module has loaded the live weights."""
        if trainer.state.fn != "fit":
            return
        self._average = {}
        self._aside = None
        saved = checkpoint.get(AVERAGE)
        if saved is not None:
            for name in _averaged_part(adaptation(pl_module)):
                self._average[name] = saved[name].clone()

    def state_dict(self) -> dict[str, Any]:
        """Returns the last step that was added."""
        return {"seen": self._seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the last step."""
        self._seen = int(state_dict["seen"])


def _state(module: AdaptationModule) -> dict[str, Tensor]:
    """Returns the trained tensors themselves."""
    state = trained_state(module.backbone, module.adapter)
    return {name: value.detach() for name, value in state.items()}


def _averaged_part(module: AdaptationModule) -> dict[str, Tensor]:
    """Returns the real numbers among them, in 32 bits at least: less would lose small steps."""
    # Counters and other integers have no mean.
    average = {}
    for name, value in _state(module).items():
        if value.is_floating_point():
            dtype = torch.promote_types(value.dtype, torch.float32)
            average[name] = value.to(dtype)
    return average


def _set(module: AdaptationModule, values: Mapping[str, Tensor]) -> None:
    state = _state(module)
    for name, value in values.items():
        state[name].copy_(value)
