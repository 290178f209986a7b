"""The progress bar of a training run: steps of the whole run, their rate, and the time left.

In: the trainer's steps. Out: a bar on a terminal. Never: a number of an epoch, which a run by
`max_steps` does not have.
"""

import math
from typing import Any, cast

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ProgressBar
from rich.progress import Progress, TaskID
from typing_extensions import override

from vlmtune.storage.progress import make_bar
from vlmtune.training.run_monitor import RunMonitor

SHOWN = {
    "train/loss": "loss {:.4g}",
    "train/lr": "lr {:.2g}",
    "train/gradient_norm": "norm {:.2g}",
    "train/logit_scale": "scale {:.3g}",
    "train/samples_per_second": "{:.3g} samples/s",
    "train/pairs_per_second": "{:.3g} pairs/s",
    "train/data_wait_fraction": "waiting {:.0%}",
    "train/memory_gib": "{:.1f} GiB",
}
"""What the line below the bar shows of a run's numbers, as long as there is room."""


class RunProgress(ProgressBar):
    """Shows the steps of the run, with its loss and the latest numbers of its `RunMonitor`.

    `vlmtune fit` uses it; from Python, `Trainer(callbacks=[RunProgress()])` does. A resumed run
    starts at its step. Benchmarks show their bars below it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown = True
        self._bar: Progress | None = None
        self._steps: TaskID | None = None
        self._validation: TaskID | None = None
        self._batches: float | None = None

    @override
    def enable(self) -> None:
        """Shows the bar."""
        self._shown = True

    @override
    def disable(self) -> None:
        """Hides the bar."""
        self._shown = False

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # A resumed run starts at its step, or the rate would count the steps of the run before.
        steps = trainer.estimated_stepping_batches
        total = int(steps) if math.isfinite(steps) else None  # of a run without an end
        step = trainer.global_step
        self._steps = self._open().add_task("training", total=total, completed=step, note="")

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self._bar is None or self._steps is None or self._bar.disable:
            return
        step = trainer.global_step
        every = cast(Any, trainer).log_every_n_steps  # 0: never
        logged = every > 0 and step % every == 0
        # Reading a number waits for a GPU, so there the line follows the log.
        if pl_module.device.type != "cpu" and not logged:
            self._bar.update(self._steps, completed=step)
            return
        callbacks = cast(Any, trainer).callbacks  # an attribute that Lightning sets later
        # What the monitor measured last is the newer of the two.
        numbers = dict(self.get_metrics(trainer, pl_module))
        for callback in callbacks:
            if isinstance(callback, RunMonitor):
                numbers |= callback.latest
        shown = [form.format(numbers[name]) for name, form in SHOWN.items() if name in numbers]
        self._bar.update(self._steps, completed=step, note="  ".join(shown))

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        batches = trainer.num_val_batches
        total = sum(batches) if isinstance(batches, list) else batches
        self._batches = total if math.isfinite(total) else None

    @override
    def on_validation_batch_end(self, *arguments: Any, **options: Any) -> None:
        bar = self._open()
        if self._validation is None:  # now, as there may be no batch
            self._validation = bar.add_task("validating", total=self._batches, note="")
        bar.advance(self._validation)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._bar is not None and self._validation is not None:
            self._bar.remove_task(self._validation)
        self._validation = None

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    @override
    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._close()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._close()

    def _open(self) -> Progress:
        if self._bar is None:
            self._bar = make_bar(self._shown)
            self._bar.start()
        return self._bar

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._steps = self._validation = None
