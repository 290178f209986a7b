"""Benchmark numbers in Lightning's metrics and loggers, and the provenance of a run.

In: results, and the trainer with its module. Out: logged numbers, tables and pictures; a record of
where the weights come from. Never: a number that an earlier step scored.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import WandbLogger
from typing_extensions import override

from vlmtune.report.environment import code_commit, library_versions, now, session
from vlmtune.report.media import COLUMNS, metric_table, retrievals
from vlmtune.results.item_row import ItemRow
from vlmtune.results.result import Result
from vlmtune.storage.secrets import without_secrets
from vlmtune.training.module import AdaptationModule, adaptation
from vlmtune.training.monitors import benchmark_of
from vlmtune.training.wandb_runs import wandb_loggers

# Once: a checkpoint must not wait for git, and the running code is the code of the start.
_commit = functools.cache(code_commit)


def log_results(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    results: Mapping[str, Result],
    not_run: Mapping[str, str],
) -> dict[str, float]:
    """Logs each number as `<benchmark>/<metric>`, and a table to Weights & Biases; returns them."""
    numbers = {}
    for name, result in results.items():
        for metric, number in result.metrics.items():
            numbers[f"{name}/{metric}"] = number.value
    # Every rank has the same numbers: nothing to reduce, nothing to wait for.
    if trainer.state.fn != "fit":  # Lightning returns and shows these
        for name, value in numbers.items():
            module.log(name, value, batch_size=1)
        return numbers
    for name in list(trainer.callback_metrics):
        if benchmark_of(name, not_run):
            del trainer.callback_metrics[name]  # an earlier step scored it
    # Some hooks have no `log`, and loggers get its numbers at every log_every_n_steps only.
    for name, value in numbers.items():
        trainer.callback_metrics[name] = torch.tensor(value)
    step = trainer.global_step
    for logger in trainer.loggers:
        logger.log_metrics({**numbers, "epoch": trainer.current_epoch}, step)
        if isinstance(logger, WandbLogger):
            table = metric_table(tuple(results.values()))
            logger.log_table("benchmarks", list(COLUMNS), table, step=step)
        logger.save()
    return numbers


def log_retrievals(trainer: pl.Trainer, results: Mapping[str, Result]) -> None:
    """Logs pictures of retrievals to Weights & Biases."""
    for logger in wandb_loggers(trainer):
        for name, result in results.items():
            pictures, texts = retrievals(result)
            if pictures:
                logger.log_image(f"{name}/retrievals", pictures, trainer.global_step, caption=texts)


def log_items(trainer: pl.Trainer, before: Sequence[ItemRow], after: Sequence[ItemRow]) -> None:
    """Logs the items before and after training to Weights & Biases."""
    loggers = wandb_loggers(trainer)
    if not loggers:
        return
    import wandb  # an extra, which only its logger needs

    from vlmtune.training.wandb_items import CHANGED, ITEMS, changed_table, item_table

    step = trainer.global_step
    items = item_table(before, after)
    for logger in loggers:
        logger.log_table("items", list(ITEMS), items, step=step)
        # W&B binds a picture to one run, so each logger gets new pictures.
        changed = changed_table(before, after, wandb.Image)
        if changed:
            logger.log_table("changed items", list(CHANGED), changed, step=step)


def provenance(
    trainer: pl.Trainer, module: AdaptationModule, benchmarks: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Returns where the weights of this step come from, for reports and checkpoints."""
    data = getattr(trainer, "datamodule", None)
    sets = getattr(data, "sets", {})  # a datamodule of the user may have none
    folders = []
    training_data = []
    for shard_set in sets.get("train", ()):
        folders.append(str(shard_set.path))
        facts = {"records": shard_set.manifest.records, "digest": shard_set.digest()}
        training_data.append(facts)
    config: dict[str, Any] = {}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        # The command line has a callback that knows the whole config.
        config = config or getattr(callback, "configuration", {})
    origin = {
        "data": ", ".join(folders),
        "config": {
            "objectives": [o.spec() for o in module.objectives],  # type: ignore[operator]
            "pairs": module.scores.pairs.spec(),
            "steps": trainer.global_step,
            "ranks": trainer.world_size,
            "training_data": training_data,
            "benchmarks": dict(benchmarks),
            "fit": config,
            **session(),
        },
        "versions": library_versions(),
        "commit": _commit(),
        "date": now(),
        "seed": module.seed,
        "seconds": seconds,
    }
    return without_secrets(origin)


class Origin(pl.Callback):
    """Records in each checkpoint where its weights come from, for `vlmtune export`.

    A `BenchmarkCallback` records more: the benchmarks, and the time without them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0  # of training, in earlier processes
        self._started = time.monotonic()

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.monotonic()

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if "provenance" not in checkpoint:
            seconds = self._seconds + time.monotonic() - self._started
            checkpoint["provenance"] = provenance(trainer, adaptation(pl_module), {}, seconds)

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        facts = checkpoint.get("provenance")
        if isinstance(facts, Mapping):  # a file may hold anything there
            self._seconds = float(facts.get("seconds", 0.0))
