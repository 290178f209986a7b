"""Callback that runs benchmarks every few steps or epochs and at the end, and writes the report.

In: benchmarks, and the weights of the present step. Out: logged numbers, and `report.json`.
Never: a change of the weights; averaged weights are put in place only for the evaluation.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
from pydantic import NonNegativeInt
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from vlmtune.adapters.trained_state import trained_values
from vlmtune.benchmarks.base import Benchmark
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import NotRun, SuiteResult, check_names, load_all, run_suite
from vlmtune.report.run_report import Curve, Provenance, RunReport
from vlmtune.report.screen import primary_line
from vlmtune.results.item_row import ItemRow
from vlmtune.results.result import Result
from vlmtune.training.evaluated_weights import evaluated_weights
from vlmtune.training.module import AdaptationModule, adaptation
from vlmtune.training.monitors import check_checkpoints, check_monitored
from vlmtune.training.run_log import log_items, log_results, log_retrievals, provenance
from vlmtune.training.wandb_runs import wandb_loggers
from vlmtune.types import Batch

log = logging.getLogger("vlmtune")


class BenchmarkCallback(Callback):
    """Runs benchmarks every `every_n_steps`, logs their numbers, writes `report.json` at the end.

    Numbers are logged as `<benchmark>/<metric>`, so a checkpoint can be saved by one of them
    (`monitor: cola_multi_unseen/accuracy`). All ranks share the work. Images and captions are
    encoded once for all benchmarks, and frozen features once for all evaluations of a run. An `EMA`
    has its averaged weights evaluated. The weights at the end of training are always evaluated,
    even if a resumed run has no step left.

    A benchmark that cannot be run stops neither the rest nor the training: one line says so,
    early if possible, and the report has the reason. A run stops if something monitors a number of
    that benchmark, and does not begin if no benchmark can be run.

    Weights & Biases gets a table of all metrics at each evaluation. At the end it gets retrievals,
    a table of all items, and pictures of the items whose outcome training changed. For these two
    the model is also measured before the first step; a resumed run has no such outcomes.

    Args:
        benchmarks: A list of benchmarks or of their YAMLs, or its YAML; names must differ.
        every_n_epochs: Evaluate after every so many epochs; 0 for never.
        every_n_steps: Evaluate after every so many optimizer steps as well; 0 for never.
        log_every_n_steps: How often the loss becomes a point of the report's curve; 0: never.
        store: Folder of feature stores, or None to hold features in memory.
        report: File of the final report, or None for `report.json` in the trainer's root folder.
        name: Name of the run in reports; None for the class of its adapter.
        download: Whether missing files are downloaded first, as `vlmtune download` does.

    Attributes:
        results: The latest results, by benchmark.
        not_run: The reason for each benchmark without a result.
    """

    def __init__(
        self,
        benchmarks: list[Benchmark],
        every_n_epochs: NonNegativeInt = 1,
        every_n_steps: NonNegativeInt = 0,
        log_every_n_steps: NonNegativeInt = 20,
        store: str | None = None,
        report: str | None = None,
        name: str | None = None,
        download: bool = False,
    ) -> None:
        check_names(benchmarks)
        self.benchmarks = benchmarks
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        self.log_every_n_steps = log_every_n_steps
        self.store = store
        self.report = report
        self.name = name
        self.download = download
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.results: dict[str, Result] = {}
        self.not_run: dict[str, str] = {}
        # Before training and at the last evaluation, where a logger shows items.
        self._items_before: list[ItemRow] = []
        self._items_after: list[ItemRow] = []
        self._scorer: Scorer | None = None
        self._evaluated_at = -1
        self._measured_before = -1  # the last step that was measured before a resume
        self._seconds = 0.0  # of training, up to the last start of the clock
        self._started: float | None = None  # None while the clock stands still

    # -- when ---------------------------------------------------------------------------------

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reads the benchmarks' files, so that a missing file is known before the first step."""
        module = adaptation(pl_module)
        self._evaluated_at = -1  # a test, or another training, may have other weights at this step
        if stage == "fit" and not trainer.global_step:
            self.curves = {}
            self._seconds = 0.0
        store = None if self.store is None else Path(self.store)
        self._scorer = Scorer(module.backbone, module.adapter, store)
        if self.download:
            from vlmtune.sources.downloads import download_missing  # most trainings have the files

            # The ranks of one machine wait for each other at the lock of the data folder.
            download_missing(self.benchmarks)
        self._note(trainer, load_all(self.benchmarks, self._scorer))

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Checks that monitored numbers will be measured."""
        check_monitored(trainer, self.not_run)
        names = [benchmark.name for benchmark in self.benchmarks]
        check_checkpoints(trainer, names, self.every_n_steps, self.every_n_epochs)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if wandb_loggers(trainer) and trainer.global_step == 0:
            _, self._items_before = self._measure(trainer, pl_module)
        self._started = time.monotonic()

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        step = trainer.global_step
        if _due(step, self.log_every_n_steps):
            # What objectives tell beside their losses is measured at logged steps only.
            every: int = cast(Any, trainer).log_every_n_steps  # Lightning sets it later
            is_logged = _due(step, every)
            for name, value in trainer.callback_metrics.items():
                is_loss = name.count("/") == 1
                if name.startswith("train/") and (is_loss or is_logged):
                    self._point(name, step, float(value))
        # With accumulated gradients the first batch of a resumed run ends at its old step.
        if _due(step, self.every_n_steps) and step != self._measured_before:
            self._evaluate_and_check(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        due = _due(epoch, self.every_n_epochs)
        last = epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if due or last or trainer.should_stop:
            self._evaluate_and_check(trainer, pl_module)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # No hook ends the epoch of a run that was resumed from the last batch of the last epoch.
        self.evaluate(trainer, pl_module)
        self._stop_clock()

    @override
    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.evaluate(trainer, pl_module)

    @override
    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.evaluate(trainer, pl_module)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the report, with the numbers of the final weights."""
        if trainer.global_step != self._evaluated_at:  # a resumed run had no step left
            pl_module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
            self.evaluate(trainer, pl_module)
            pl_module.cpu()
        if trainer.is_global_zero:
            log_retrievals(trainer, self.results)
            log_items(trainer, self._items_before, self._items_after)
            default = Path(trainer.default_root_dir) / "report.json"
            path = Path(self.report or default).expanduser()
            self.run_report(trainer, pl_module).save(path)

    # -- what ---------------------------------------------------------------------------------

    def evaluate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Runs every benchmark once for this step and logs its numbers."""
        step = trainer.global_step
        if step == self._evaluated_at:
            return
        # The clock of training stands still during an evaluation.
        running = self._started is not None
        self._stop_clock()
        training = trainer.state.fn == "fit"
        suite, self._items_after = self._measure(trainer, pl_module)
        self._note(trainer, suite.not_run)
        self.results = {result.benchmark: result for result in suite.results}
        numbers = log_results(trainer, pl_module, self.results, self.not_run)
        for name, value in numbers.items():
            self._point(name, step, value)
        # The command line shows a table of the numbers of the last step.
        is_last = step == trainer.max_steps
        if training and not is_last and trainer.is_global_zero:
            for result in suite.results:
                log.info("step %d: %s", step, primary_line(result))
        self._evaluated_at = step
        if running:
            self._started = time.monotonic()

    def _measure(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule
    ) -> tuple[SuiteResult, list[ItemRow]]:
        """Runs every benchmark; returns the items too, if a logger shows them."""
        assert self._scorer is not None
        training = trainer.state.fn == "fit"
        shows_items = training and wandb_loggers(trainer)
        items: list[ItemRow] = []
        collected = items if shows_items else None
        with evaluated_weights(trainer, adaptation(pl_module)):
            suite = run_suite(
                self.benchmarks, self._scorer, at_least_one=not training, items=collected
            )
        return suite, items

    def _evaluate_and_check(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.evaluate(trainer, pl_module)
        check_monitored(trainer, self.not_run)

    def _note(self, trainer: pl.Trainer, not_run: Sequence[NotRun]) -> None:
        """Warns of each benchmark that is not run, once until it runs again."""
        for name, reason in not_run:
            if name not in self.not_run and trainer.is_global_zero:
                log.warning("not run: %s: %s", name, reason)
        self.not_run = dict(not_run)

    def run_report(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> RunReport:
        """Returns the latest results with their provenance."""
        module = adaptation(pl_module)
        backbone = module.backbone
        adapter = module.adapter
        origin = Provenance(
            backbone=backbone.title,
            adapter=type(adapter).__name__,
            model={"backbone": backbone.spec(), "adapter": adapter.spec()},
            fingerprint=backbone.fingerprint,
            trainable_parameters=trained_values(backbone, adapter),
            **self._provenance(trainer, module),
        )
        curves: dict[str, Curve] = {name: tuple(points) for name, points in self.curves.items()}
        return RunReport(
            name=self.name or origin.adapter,
            provenance=origin,
            results=tuple(self.results.values()),
            curves=curves,
            not_run=tuple(self.not_run.items()),
        )

    def _provenance(self, trainer: pl.Trainer, module: AdaptationModule) -> dict[str, Any]:
        specs = {benchmark.name: benchmark.spec() for benchmark in self.benchmarks}
        return provenance(trainer, module, specs, self._elapsed())

    # -- checkpoints --------------------------------------------------------------------------

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Adds the provenance, for `vlmtune export` and `vlmtune evaluate`."""
        checkpoint["provenance"] = self._provenance(trainer, adaptation(pl_module))

    @override
    def state_dict(self) -> dict[str, Any]:
        """Returns the curves and the time so far: a resumed run reports both in full."""
        curves = {name: list(points) for name, points in self.curves.items()}
        return {"curves": curves, "seconds": self._elapsed(), "evaluated_at": self._evaluated_at}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds = float(state_dict["seconds"])
        self._measured_before = int(state_dict.get("evaluated_at", -1))
        self.curves = {}
        for name, points in state_dict["curves"].items():
            self.curves[name] = [(int(step), float(value)) for step, value in points]

    def _elapsed(self) -> float:
        if self._started is None:
            return self._seconds
        since_start = time.monotonic() - self._started
        return self._seconds + since_start

    def _stop_clock(self) -> None:
        self._seconds = self._elapsed()
        self._started = None

    def _point(self, name: str, step: int, value: float) -> None:
        points = self.curves.setdefault(name, [])
        last_step = points[-1][0] if points else -1
        if step > last_step:
            points.append((step, value))


def _due(count: int, every: int) -> bool:
    """Whether something that happens `every` so many (0: never) happens after `count` of them."""
    return count > 0 and every > 0 and count % every == 0
