"""Checks that what monitors a number gets one at the right time.

In: the trainer's callbacks and schedules, and the benchmarks. Out: nothing, or a `UserError`.
Never: a change of any of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from vlmtune.errors import UserError


def check_checkpoints(
    trainer: pl.Trainer, benchmarks: Iterable[str], every_n_steps: int, every_n_epochs: int
) -> None:
    """Checks that a ModelCheckpoint saves only when its monitored benchmark is run.

    Otherwise it would save weights by the number of earlier ones.
    """
    names = list(benchmarks)
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        if benchmark_of(callback.monitor, names) is None:
            continue
        steps = callback._every_n_train_steps
        epochs = callback.every_n_epochs
        timed = callback._train_time_interval is not None
        measured = _divides(every_n_steps, steps) and _divides(every_n_epochs, epochs)
        if timed or not measured:
            raise UserError(
                f"expected {callback.monitor} to be measured whenever a checkpoint is saved by "
                f"it, got ModelCheckpoint with every_n_train_steps={steps} and "
                f"every_n_epochs={epochs}, BenchmarkCallback with every_n_steps={every_n_steps} "
                f"and every_n_epochs={every_n_epochs}: make those multiples of these"
            )


def check_validated(trainer: pl.Trainer) -> None:
    """Checks that a ModelCheckpoint which monitors validation saves after validations only.

    By steps or by time Lightning would save weights by the number of earlier ones, and that even
    at the step of a validation: it saves first.
    """
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint):
            continue
        by_validation = str(callback.monitor).startswith("val/")
        by_steps = callback._every_n_train_steps > 0
        if by_validation and (by_steps or callback._train_time_interval is not None):
            raise UserError(
                f"expected {callback.monitor} to be measured whenever a checkpoint is saved by "
                "it, got ModelCheckpoint with every_n_train_steps or train_time_interval: leave "
                "them out, and it saves after each validation"
            )


def check_monitored(trainer: pl.Trainer, not_run: Mapping[str, str]) -> None:
    """Checks that nothing monitors a benchmark that is not run."""
    for name, monitor in _monitors(trainer):
        if benchmark := benchmark_of(monitor, not_run):
            got = f"no number, as {benchmark} is not run: {not_run[benchmark]}"
            raise UserError(f"expected {monitor}, which {name} monitors, got {got}")


def benchmark_of(metric: Any, benchmarks: Iterable[str]) -> str | None:
    """Returns the benchmark that a logged number belongs to, or None."""
    for name in benchmarks:
        if str(metric).startswith(f"{name}/"):
            return name
    return None


def _divides(measured: int, saved: int | None) -> bool:
    """Returns whether each `saved`-th step (never for 0) is also a `measured`-th."""
    return not saved or (measured > 0 and saved % measured == 0)


def _monitors(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yields what decides by a logged number, such as an EarlyStopping, and the number's name."""
    for callback in trainer.callbacks:
        yield type(callback).__name__, getattr(callback, "monitor", None)
    for schedule in trainer.lr_scheduler_configs:
        if schedule.reduce_on_plateau:
            yield type(schedule.scheduler).__name__, schedule.monitor
