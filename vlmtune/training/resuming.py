"""What Lightning leaves out of a resume: options of the config, and a validation that was due.

In: a trainer whose checkpoint is loaded. Out: its optimizer, schedule, logged numbers and callbacks
as an uninterrupted run has them. Never: another state of the optimizer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from torch.optim.lr_scheduler import LambdaLR

from vlmtune.training.module import AdaptationModule

OPTIONS = ("initial_lr", "weight_decay")
"""What a config may change; others may be counts that an optimizer keeps beside its options."""


def resume(module: AdaptationModule) -> None:
    """Completes what Lightning has loaded: the rates of the config win, and it validates."""
    trainer = module.trainer
    # A user's module may have other optimizers and schedules.
    if type(module).configure_optimizers is AdaptationModule.configure_optimizers:
        configured = module.configure_optimizers()
        schedule = trainer.lr_scheduler_configs[0].scheduler
        assert isinstance(schedule, LambdaLR)
        options = configured["optimizer"].param_groups
        changed = take_options(trainer.optimizers[0], schedule, options)
        if changed and trainer.is_global_zero:
            print(f"resumed with another {', '.join(changed)} of the optimizer")
    # An EarlyStopping or a ModelCheckpoint may ask for a number before it is measured again.
    trainer.callback_metrics.update(module.measured)
    run_due_validation(trainer)


def take_options(
    optimizer: torch.optim.Optimizer, schedule: LambdaLR, options: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Gives a resumed optimizer `OPTIONS` of the config in place of those of the checkpoint.

    Returns the names of options that differ.
    """
    changed: dict[str, None] = {}
    for group, wanted in zip(optimizer.param_groups, options, strict=True):
        for name in OPTIONS:
            if name in wanted and group.get(name) != wanted[name]:
                changed[name] = None
                group[name] = wanted[name]
    # The schedule is that of the config, which may have more steps.
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    for group, factor in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * factor(schedule.last_epoch)
    names = {"initial_lr": "lr"}
    return [names.get(name, name) for name in changed]


def run_due_validation(trainer: pl.Trainer) -> None:
    """Runs the validation and the end of an epoch that were due at the step of the checkpoint.

    A checkpoint of every so many steps, or of a signal, is written before the validation of its
    step. Without that validation the best checkpoint would be another one after a resume.
    """
    loop = trainer.fit_loop.epoch_loop
    by_time = getattr(trainer, "_val_check_time_interval", None) is not None
    if not loop.restarted_on_train_batch_end or by_time:
        return
    fetcher = trainer.fit_loop._data_fetcher
    if fetcher is None:
        return
    progress = loop.batch_progress
    epochs: Any = trainer.fit_loop.epoch_progress
    ends_epoch = progress.is_last_batch and trainer.fit_loop.restarted_mid_epoch
    if ends_epoch:
        # Lightning has gone on to the next epoch already.
        for counts in (epochs.total, epochs.current):
            counts.processed -= 1
            counts.completed -= 1
    # As Lightning's own loops do it after a batch, which is complete by then.
    progress.increment_completed()
    if loop._should_check_val_fx(fetcher):
        _validate(trainer)
    if ends_epoch:
        loop._batches_that_stepped += 1
        trainer.fit_loop.on_advance_end()  # it counts the epoch again
        loop._batches_that_stepped -= 1
    # Lightning counts the batch itself when its loop starts.
    for counts in (progress.total, progress.current):
        counts.completed -= 1


def _validate(trainer: pl.Trainer) -> None:
    trainer.validating = True
    first_iteration = trainer._logger_connector._first_loop_iter
    validation = trainer.fit_loop.epoch_loop.val_loop
    validation.restarting = False
    validation.run()
    trainer.training = True
    trainer._logger_connector._first_loop_iter = first_iteration
