"""What a run shows and logs besides losses: learning rate, gradient norm, temperature, throughput.

In: the trainer's steps. Out: logged numbers, every `log_every_n_steps` (0: never).
Never: a number in the report, or a change of a gradient.
"""

import math
import resource
import sys
import time
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from typing_extensions import override


class RunMonitor(pl.Callback):
    r"""Measures and logs how a run goes, every `log_every_n_steps`, under `train/`.

    - `lr`: the learning rate of the first parameter group.
    - `gradient_norm`: $\|g\|_2$ over all trained weights before clipping.
    - `logit_scale`: $e^{\tau}$, the inverse temperature, if the adapter trains it.
    - `samples_per_second`: records of all ranks since the last logged step, by the time that
      passed, evaluations included.
    - `pairs_per_second`: image-text pairs that all ranks score in that time.
    - `seconds_left`: time to the end of the run at this speed, if its end is known.
    - `data_wait_fraction`: the fraction of that time in which this rank waited for data.
    - `memory_gib`: the largest memory so far in GiB: of the device, or of this process on a CPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, float] = {}  # the numbers that were logged last
        self._numbers: dict[str, float] = {}
        self._restart(0.0, 0.0, 0)

    def _restart(self, since: float, waited: float, step: int) -> None:
        self._records = 0
        self._pairs = torch.zeros((), dtype=torch.int64)
        self._since = since
        self._waited = waited
        self._step = step

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._restart(time.monotonic(), _waited(trainer), trainer.global_step)

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        every: int = cast(Any, trainer).log_every_n_steps  # an attribute that Lightning sets later
        if not every or (trainer.global_step + 1) % every:
            return
        # Before clipping, so that the norm tells of the loss and not of the clip.
        norm = _gradient_norm(optimizer)
        # A fused optimizer unscales the gradients of 16-bit training in its step, later than here.
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        unscales_later = getattr(optimizer, "_step_supports_amp_scaling", False)
        if scaler is not None and unscales_later:
            norm /= float(scaler.get_scale())
        first_group = optimizer.param_groups[0]
        self._numbers = {"train/lr": float(first_group["lr"]), "train/gradient_norm": norm}
        log_scale = getattr(pl_module.adapter, "log_scale", None)
        if isinstance(log_scale, Tensor) and log_scale.requires_grad:
            self._numbers["train/logit_scale"] = float(log_scale.detach().exp())

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        scored = cast(Any, pl_module).scores.scored
        self._records += len(batch.keys) * trainer.world_size
        # A new tensor, as the first batch moves the count to the device.
        self._pairs = self._pairs + scored * trainer.world_size
        if not self._numbers:
            return
        # All numbers are of the time since the last logged step.
        now = time.monotonic()
        waited = _waited(trainer)
        step = trainer.global_step
        passed = max(now - self._since, 1e-9)
        self.latest = {
            **self._numbers,
            "train/samples_per_second": self._records / passed,
            "train/pairs_per_second": int(self._pairs) / passed,
            "train/data_wait_fraction": (waited - self._waited) / passed,
            "train/memory_gib": _memory(pl_module.device),
        }
        end = trainer.estimated_stepping_batches
        if math.isfinite(end):
            seconds_a_step = passed / max(step - self._step, 1)
            # After a resume with another batch size the run has more steps than estimated.
            self.latest["train/seconds_left"] = max(end - step, 0) * seconds_a_step
        for logger in trainer.loggers:
            logger.log_metrics({**self.latest, "epoch": trainer.current_epoch}, step)
        self._numbers = {}
        self._restart(now, waited, step)


def _gradient_norm(optimizer: Optimizer) -> float:
    gradients = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradients.append(parameter.grad)
    return float(get_total_norm(gradients))


def _waited(trainer: pl.Trainer) -> float:
    """Seconds that this rank has waited for data so far; 0 where its loader does not know."""
    return float(getattr(trainer.train_dataloader, "seconds_fetching", 0.0))


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    usage = resource.getrusage(resource.RUSAGE_SELF)
    # macOS counts bytes, Linux counts kibibytes.
    unit = 1 if sys.platform == "darwin" else 2**10
    return usage.ru_maxrss * unit / 2**30
