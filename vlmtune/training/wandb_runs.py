"""The runs of Weights & Biases: names, origins, and those that a resumed training continues.

In: a checkpoint, or what is trained. Out: ids and names, in the loggers. Never: a connection.
"""

import os
from typing import Any

import pytorch_lightning as pl
import yaml
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.trainer.states import TrainerFn
from typing_extensions import override

from vlmtune.model import check_checkpoint
from vlmtune.training.module import AdaptationModule, adaptation

RUNS = "wandb_runs"  # in a checkpoint: an id for each W&B logger, in their order


class WandbRuns(pl.Callback):
    """Records the ids of the W&B runs in each checkpoint, and in the runs what they start from."""

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and (loggers := wandb_loggers(trainer)):
            origin = started_from(adaptation(pl_module))
            for logger in loggers:
                logger.log_hyperparams({"started_from": origin})

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if loggers := wandb_loggers(trainer):
            checkpoint[RUNS] = [str(logger.version) for logger in loggers]


def started_from(module: AdaptationModule) -> dict[str, dict[str, str]]:
    """Name and digest of the weights that a run starts from: the backbone's, and the teacher's.

    The artifact of an export has the same digest. `Run.use_artifact` fails without a network.
    """
    origin = {"backbone": {"name": module.backbone.title, "digest": module.fingerprint}}
    if module.teacher is not None:
        origin["teacher"] = module.teacher.origin
    return origin


def continue_runs(trainer: pl.Trainer, ckpt_path: str | None) -> None:
    """Makes W&B loggers append to the runs of the checkpoint that a fit resumes from.

    Call it before the trainer starts: W&B fixes the id of a run as the run starts. A logger with an
    id keeps it, and so does the trial of a sweep, which gets its id from the agent. Without a path
    it finds the checkpoint of a requeued job of Slurm.
    """
    loggers = wandb_loggers(trainer)
    for logger in loggers:
        options = logger._wandb_init
        if options.get("anonymous") is None:
            options.pop("anonymous", None)  # W&B warns even of None
    if not loggers or "WANDB_RUN_ID" in os.environ:
        return
    path = trainer._checkpoint_connector._parse_ckpt_path(
        TrainerFn.FITTING, ckpt_path, model_provided=True, model_connected=False
    )
    if path is None or "://" in str(path):
        return
    runs = check_checkpoint(path).get(RUNS, ())
    for logger, run in zip(loggers, runs, strict=False):
        if logger.version is None:
            logger._id = logger._wandb_init["id"] = run  # Lightning passes `resume="allow"`


def name_runs(trainer: pl.Trainer, adapter: str, data: str) -> None:
    """Names new W&B runs by what varies, and groups them by adapter; a chosen name stays.

    A trial of a sweep has the values that the agent sampled, such as "lr 0.003, dropout 0.1";
    another run by adapter and data. Call it after `continue_runs`: a run that goes on keeps its
    name.
    """
    for logger in wandb_loggers(trainer):
        if logger.version is not None:
            continue
        chosen = logger._wandb_init
        defaults = {
            "name": ("WANDB_NAME", _sampled() or f"{adapter} on {data}"),
            "group": ("WANDB_RUN_GROUP", adapter),
            "job_type": ("WANDB_JOB_TYPE", "fit"),
        }
        for key, (variable, value) in defaults.items():
            if chosen.get(key) is None and variable not in os.environ:
                chosen[key] = value


def _sampled() -> str:
    """The values of this trial, each behind the last word of its key; "" outside a sweep."""
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH", "")
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8") as file:
        parameters = yaml.safe_load(file)
    texts = []
    for key, parameter in parameters.items():
        if not isinstance(parameter, dict) or "value" not in parameter:
            continue  # the version of the file
        value = parameter["value"]
        if isinstance(value, float):
            value = f"{value:.3g}"
        _, _, last_word = key.rpartition(".")
        texts.append(f"{last_word} {value}")
    name = ", ".join(texts)
    return name[:128]  # the longest name that W&B takes


def wandb_loggers(trainer: pl.Trainer) -> list[WandbLogger]:
    """The loggers of W&B among those of the trainer."""
    return [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
