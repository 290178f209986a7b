"""Evaluation during training, and the report a run leaves behind."""

import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import WandbLogger

from vlmtune.benchmarks.base import Benchmark
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import NotRun, check_names, load_all, run_suite
from vlmtune.report.environment import code_commit, library_versions, now
from vlmtune.report.media import COLUMNS, metric_table, retrievals
from vlmtune.report.result import Result
from vlmtune.report.run_report import Curve, Provenance, RunReport
from vlmtune.training.ema import averaged_weights
from vlmtune.training.module import AdaptationModule
from vlmtune.types import Batch

log = logging.getLogger("vlmtune")


class Evaluation(Callback):
    """Runs benchmarks on a schedule, logs their numbers, and writes `report.json` at the end.

    Numbers are logged as `<benchmark>/<metric>`, so a checkpoint can be kept by one of them
    (`monitor: cola_multi_unseen/accuracy`). Every rank takes part in scoring, so none waits for
    another; images and captions are encoded once for all benchmarks, and where what is read of them
    is frozen, for all evaluations of a run. Where an `EMA` is kept, averaged weights are evaluated.
    The weights at the end of training are always evaluated, also where a resumed run had nothing
    left to do.

    A benchmark that cannot be run, for a missing file or what is found out later, stops neither the
    others nor the training: a line says so once, before the first step where it is known then, and
    the report says why. A run stops where something monitors a number of that benchmark, and does
    not begin where no benchmark can be run.

    Weights & Biases gets a table of all metrics at each evaluation, and at the end the retrievals.

    Args:
        benchmarks: What to measure; names must differ.
        every_n_epochs: Evaluate after every so many epochs; 0 for never.
        every_n_steps: Evaluate after every so many optimizer steps as well; 0 for never.
        log_every_n_steps: How often the loss becomes a point of the report's curve.
        store: Folder of feature stores, or None to keep features in memory.
        report: File of the final report, or None for `report.json` in the trainer's root folder.
        name: Name of the run in reports.

    Attributes:
        configuration: The complete config of the run, for its report; `vlmtune fit` sets it.
        results: The latest numbers, by benchmark.
        not_run: Why others have none, by benchmark.

    Raises:
        UserError: No benchmark, two of one name, or no schedule.
    """

    def __init__(
        self,
        benchmarks: list[Benchmark],
        every_n_epochs: int = 1,
        every_n_steps: int = 0,
        log_every_n_steps: int = 20,
        store: str | None = None,
        report: str | None = None,
        name: str = "run",
    ) -> None:
        check_names(benchmarks)
        if every_n_epochs < 0 or every_n_steps < 0 or not (every_n_epochs or every_n_steps):
            raise UserError(
                f"expected a schedule, got every_n_epochs={every_n_epochs} and "
                f"every_n_steps={every_n_steps}: set one above 0"
            )
        self.benchmarks = benchmarks
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.log_every_n_steps = log_every_n_steps
        self.store, self.report, self.name = store, report, name
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.results: dict[str, Result] = {}
        self.not_run: dict[str, str] = {}
        self.configuration: dict[str, Any] = {}
        self._scorer: Scorer | None = None
        self._evaluated_at = -1
        self._seconds = 0.0  # of training, up to when the clock was started last
        self._started: float | None = None  # None while the clock stands still

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reads the benchmarks' files, so that what is missing is said before the first step.

        Raises:
            UserError: No benchmark can be run.
        """
        del stage
        assert isinstance(pl_module, AdaptationModule)
        store = None if self.store is None else Path(self.store)
        self._scorer = Scorer(pl_module.backbone, pl_module.adapter, store)
        self._note(trainer, load_all(self.benchmarks, self._scorer))

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuses to keep checkpoints by a number that is not measured when they are saved.

        Raises:
            UserError: What is monitored cannot be measured, or a ModelCheckpoint monitors a
                benchmark at other steps or epochs than those it is run at: it would keep weights by
                the number of earlier ones.
        """
        del pl_module
        self._check_monitored(trainer)
        names = [benchmark.name for benchmark in self.benchmarks]
        for callback in trainer.checkpoint_callbacks:
            if not isinstance(callback, ModelCheckpoint) or not _owner(callback.monitor, names):
                continue
            steps, epochs = callback._every_n_train_steps, callback.every_n_epochs
            timed = callback._train_time_interval is not None
            if timed or not (
                _meets(steps, self.every_n_steps) and _meets(epochs, self.every_n_epochs)
            ):
                raise UserError(
                    f"expected {callback.monitor} to be measured whenever a checkpoint is kept by "
                    f"it, got ModelCheckpoint with every_n_train_steps={steps} and "
                    f"every_n_epochs={epochs}, Evaluation with every_n_steps={self.every_n_steps} "
                    f"and every_n_epochs={self.every_n_epochs}: make those multiples of these"
                )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts the clock."""
        del trainer, pl_module
        self._started = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Adds to the loss curve, and evaluates where the step schedule says so."""
        del outputs, batch, batch_idx
        step = trainer.global_step
        if step and step % self.log_every_n_steps == 0:
            for name, value in trainer.callback_metrics.items():
                if name.startswith("train/"):
                    self._point(name, step, float(value))
        if step and self.every_n_steps and step % self.every_n_steps == 0:
            self.evaluate(trainer, pl_module)
            self._check_monitored(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates where the epoch schedule says so, and always after the last epoch."""
        due = self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if due or trainer.should_stop or self._is_last(trainer):
            self.evaluate(trainer, pl_module)
            self._check_monitored(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates what was resumed from the last batch of the last epoch, which no hook ended."""
        self.evaluate(trainer, pl_module)
        self._seconds, self._started = self._elapsed(), None

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates for `vlmtune validate`."""
        if trainer.state.fn == "validate":
            self.evaluate(trainer, pl_module)

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates for `vlmtune test`."""
        self.evaluate(trainer, pl_module)

    def evaluate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Runs every benchmark once for this step and logs its numbers.

        Raises:
            UserError: Outside training, not one benchmark could be run.
        """
        step = trainer.global_step
        if step == self._evaluated_at:
            return
        assert self._scorer is not None
        running, self._seconds, self._started = self._started, self._elapsed(), None
        assert isinstance(pl_module, AdaptationModule)
        with averaged_weights(trainer, pl_module):
            must = trainer.state.fn != "fit"
            suite = run_suite(self.benchmarks, self._scorer, at_least_one=must)
        self._note(trainer, suite.not_run)
        self.results = {result.benchmark: result for result in suite.results}
        numbers = {
            f"{name}/{metric}": number.value
            for name, result in self.results.items()
            for metric, number in result.metrics.items()
        }
        for name, value in numbers.items():
            self._point(name, step, value)
        self._log(trainer, pl_module, numbers)
        self._evaluated_at = step
        self._started = None if running is None else time.monotonic()

    def _note(self, trainer: pl.Trainer, not_run: Sequence[NotRun]) -> None:
        """Says what is not run, once until it runs again."""
        for name, why in not_run:
            if name not in self.not_run and trainer.is_global_zero:
                log.warning("not run: %s: %s", name, why)
        self.not_run = dict(not_run)

    def _check_monitored(self, trainer: pl.Trainer) -> None:
        """Raises `UserError` where something is decided by a benchmark that is not run."""
        for who, monitor in _monitors(trainer):
            if name := _owner(monitor, self.not_run):
                got = f"no number, as {name} is not run: {self.not_run[name]}"
                raise UserError(f"expected {monitor}, which {who} monitors, got {got}")

    def _log(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, numbers: Mapping[str, float]
    ) -> None:
        # Every rank has the same numbers: nothing to reduce, nothing to wait for.
        if trainer.state.fn != "fit":  # Lightning returns and shows what is logged so
            for name, value in numbers.items():
                pl_module.log(name, value, batch_size=1)
            return
        # What an earlier step scored must not pass for this one's number.
        for name in [n for n in trainer.callback_metrics if _owner(n, self.not_run)]:
            del trainer.callback_metrics[name]
        # `log` is not there in every hook, and loggers see it at every log_every_n_steps only.
        for name, value in numbers.items():
            trainer.callback_metrics[name] = torch.tensor(value)
        for logger in trainer.loggers:
            logger.log_metrics({**numbers, "epoch": trainer.current_epoch}, trainer.global_step)
            if isinstance(logger, WandbLogger):
                table = metric_table(tuple(self.results.values()))
                logger.log_table("benchmarks", list(COLUMNS), table, step=trainer.global_step)
            logger.save()

    def _log_retrievals(self, trainer: pl.Trainer) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, WandbLogger)]
        for name, result in self.results.items() if loggers else ():
            pictures, texts = retrievals(result)
            for logger in loggers if pictures else ():
                logger.log_image(f"{name}/retrievals", pictures, trainer.global_step, caption=texts)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the report, with the numbers of the weights as they are now.

        A resumed run with nothing left to do comes here without having trained.
        """
        if trainer.global_step != self._evaluated_at:
            pl_module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
            self.evaluate(trainer, pl_module)
            pl_module.cpu()
        if trainer.is_global_zero:
            self._log_retrievals(trainer)
            path = Path(self.report or Path(trainer.default_root_dir) / "report.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            self.run_report(trainer, pl_module).save(path)

    def run_report(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> RunReport:
        """Returns the latest numbers with their provenance."""
        assert isinstance(pl_module, AdaptationModule)
        trained = (p.numel() for p in pl_module.parameters() if p.requires_grad)
        backbone, adapter = pl_module.backbone.spec(), pl_module.adapter.spec()
        provenance = Provenance(
            backbone=str(backbone["init_args"].get("model", type(pl_module.backbone).__name__)),
            adapter=type(pl_module.adapter).__name__,
            model={"backbone": backbone, "adapter": adapter},
            fingerprint=pl_module.backbone.fingerprint,
            trainable_parameters=sum(trained),
            **self._origin(trainer, pl_module),
        )
        curves: dict[str, Curve] = {name: tuple(points) for name, points in self.curves.items()}
        results, not_run = tuple(self.results.values()), tuple(self.not_run.items())
        return RunReport(self.name, provenance, results, curves, not_run)

    def _origin(self, trainer: pl.Trainer, pl_module: AdaptationModule) -> dict[str, Any]:
        """Where the weights of this step come from: what the report and a checkpoint say of it."""
        data = getattr(trainer, "datamodule", None)
        return {
            "data": ", ".join(str(s.path) for s in data.sets["train"]) if data else "",
            "config": {
                "objectives": [o.spec() for o in pl_module.objectives],  # type: ignore[operator]
                "pairs": pl_module.pairs.spec(),
                "steps": trainer.global_step,
                "benchmarks": {one.name: one.spec() for one in self.benchmarks},
                "fit": self.configuration,
            },
            "versions": library_versions(),
            "commit": _commit(),
            "date": now(),
            "seed": pl_module.seed,
            "seconds": self._elapsed(),
        }

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Notes where the weights come from, for `vlmtune export` and `vlmtune evaluate`."""
        assert isinstance(pl_module, AdaptationModule)
        checkpoint["provenance"] = self._origin(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The curves and the time so far: a resumed run reports the whole."""
        return {
            "curves": {name: list(points) for name, points in self.curves.items()},
            "seconds": self._elapsed(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts the curves and the time back."""
        self.curves = {
            n: [(int(s), float(v)) for s, v in p] for n, p in state_dict["curves"].items()
        }
        self._seconds = float(state_dict["seconds"])

    def _elapsed(self) -> float:
        running = 0.0 if self._started is None else time.monotonic() - self._started
        return self._seconds + running

    def _point(self, name: str, step: int, value: float) -> None:
        points = self.curves.setdefault(name, [])
        if not points or points[-1][0] < step:
            points.append((step, value))

    @staticmethod
    def _is_last(trainer: pl.Trainer) -> bool:
        epochs, steps = trainer.max_epochs, trainer.max_steps
        return trainer.current_epoch + 1 == epochs or trainer.global_step == steps


def _meets(kept: int | None, measured: int) -> bool:
    """Whether what happens every `kept` steps (never for 0) falls on every `measured`-th."""
    return not kept or (measured > 0 and kept % measured == 0)


def _owner(metric: Any, benchmarks: Iterable[str]) -> str | None:
    """Which of the benchmarks a number is of; None for others and for what is no name at all."""
    return next((name for name in benchmarks if str(metric).startswith(f"{name}/")), None)


def _monitors(trainer: Any) -> Iterator[tuple[str, Any]]:
    """What decides by a logged number, such as an EarlyStopping, and the number's name."""
    for callback in trainer.callbacks:
        yield type(callback).__name__, getattr(callback, "monitor", None)
    for schedule in trainer.lr_scheduler_configs:
        if schedule.reduce_on_plateau:
            yield type(schedule.scheduler).__name__, schedule.monitor


@functools.cache
def _commit() -> str:
    # Once: a checkpoint must not wait for git, and what runs is the code as it was at the start.
    return code_commit()
