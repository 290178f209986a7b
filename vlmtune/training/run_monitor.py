"""What a run's loggers get besides losses: learning rate, gradient norm, throughput.

In: the trainer's steps. Out: logged numbers, every `log_every_n_steps`.
Never: a number in the report, or a change of a gradient.
"""

import time
from typing import Any, cast

import pytorch_lightning as pl
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from typing_extensions import override


class RunMonitor(pl.Callback):
    r"""Logs `train/lr`, `train/gradient_norm` and `train/samples_per_second`.

    The rate is that of the first parameter group. The norm is $\|g\|_2$ over all trained weights
    before clipping. Throughput counts the records of all ranks between two logged steps, time of
    evaluations included.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, float] = {}
        self._records, self._since = 0, 0.0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._records, self._since = 0, time.monotonic()

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        every: int = cast(Any, trainer).log_every_n_steps  # an attribute that Lightning sets later
        if not trainer.loggers or (trainer.global_step + 1) % every:
            return
        groups = optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else float(scaler.get_scale())  # of 16-bit training
        self._numbers = {
            "train/lr": float(groups[0]["lr"]),
            "train/gradient_norm": float(get_total_norm(gradients)) / scale,
        }

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._records += len(batch.keys) * trainer.world_size
        if not self._numbers:
            return
        now = time.monotonic()
        rate = self._records / max(now - self._since, 1e-9)
        numbers = {**self._numbers, "train/samples_per_second": rate}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, trainer.global_step)
        self._numbers, self._records, self._since = {}, 0, now
