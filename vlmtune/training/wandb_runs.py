"""The runs of Weights & Biases that a resumed training continues.

In: a checkpoint. Out: the ids of its W&B runs, in the loggers. Never: a connection to W&B.
"""

import os
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.trainer.states import TrainerFn
from typing_extensions import override

from vlmtune.model import check_checkpoint

RUNS = "wandb_runs"  # in a checkpoint: an id for each W&B logger, in their order


class WandbRuns(pl.Callback):
    """Records the ids of the W&B runs in each checkpoint."""

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if loggers := _loggers(trainer):
            checkpoint[RUNS] = [str(logger.version) for logger in loggers]


def continue_runs(trainer: pl.Trainer, ckpt_path: str | None) -> None:
    """Makes W&B loggers append to the runs of the checkpoint that a fit resumes from.

    Call it before the trainer starts: W&B fixes the id of a run as the run starts. A logger with an
    id keeps it, and so does the trial of a sweep, which gets its id from the agent.

    Args:
        trainer: Its loggers are changed.
        ckpt_path: As for `Trainer.fit`. None also finds the checkpoint of a requeued job of Slurm.
    """
    for logger in _loggers(trainer):
        if logger._wandb_init.get("anonymous") is None:
            logger._wandb_init.pop("anonymous", None)  # W&B warns even of None
    loggers = [logger for logger in _loggers(trainer) if logger.version is None]
    if not loggers or "WANDB_RUN_ID" in os.environ:
        return
    path = trainer._checkpoint_connector._parse_ckpt_path(
        TrainerFn.FITTING, ckpt_path, model_provided=True, model_connected=False
    )
    if path is None or "://" in str(path):
        return
    runs = check_checkpoint(path).get(RUNS, ())
    for logger, run in zip(loggers, runs, strict=False):
        logger._id = logger._wandb_init["id"] = run  # Lightning passes `resume="allow"`


def _loggers(trainer: pl.Trainer) -> list[WandbLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
