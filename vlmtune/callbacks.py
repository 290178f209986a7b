"""Evaluation during training, and the report a run leaves behind."""

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback

from vlmtune.benchmarks.base import Benchmark
from vlmtune.errors import UserError
from vlmtune.report.environment import git_commit, library_versions, now
from vlmtune.report.results import Provenance, RunReport
from vlmtune.scoring import Scorer
from vlmtune.system import AdaptationModule
from vlmtune.types import Batch, Result


class Evaluation(Callback):
    """Runs benchmarks on a schedule, logs their numbers, and writes `report.json` at the end.

    Numbers are logged as `<benchmark>/<metric>`, so a checkpoint can be kept by one of them
    (`monitor: cola_multi_unseen/accuracy`). Every rank takes part in scoring, so none waits for
    another; images and captions are encoded once for all evaluations of a run.

    Args:
        benchmarks: What to measure; names must differ.
        every_n_epochs: Evaluate after every so many epochs; 0 for never.
        every_n_steps: Evaluate after every so many optimizer steps as well; 0 for never.
        log_every_n_steps: How often the loss becomes a point of the report's curve.
        store: Folder of feature stores, or None to keep features in memory.
        report: File of the final report, or None for `report.json` in the trainer's root folder.
        name: Name of the run in reports.

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
        names = [benchmark.name for benchmark in benchmarks]
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"expected benchmarks of different names, got {names}: name each, list at least one"
            )
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
        self._scorer: Scorer | None = None
        self._evaluated_at = -1
        self._seconds = 0.0
        self._started = 0.0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Reads the benchmarks' files, so that what is missing is said before the first step."""
        del trainer, stage
        assert isinstance(pl_module, AdaptationModule)
        for benchmark in self.benchmarks:
            benchmark.load()
        store = None if self.store is None else Path(self.store)
        self._scorer = Scorer(pl_module.backbone, pl_module.adapter, store)

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
        if self.every_n_steps and step % self.every_n_steps == 0:
            self.evaluate(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates where the epoch schedule says so, and always after the last epoch."""
        due = self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if due or trainer.should_stop or self._is_last(trainer):
            self.evaluate(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates for `vlmtune validate`."""
        if trainer.state.fn == "validate":
            self.evaluate(trainer, pl_module)

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluates for `vlmtune test`."""
        self.evaluate(trainer, pl_module)

    def evaluate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Runs every benchmark once for this step and logs its numbers."""
        step = trainer.global_step
        if step == self._evaluated_at:
            return
        assert self._scorer is not None
        for benchmark in self.benchmarks:
            result = benchmark.run(self._scorer)
            self.results[result.benchmark] = result
            for metric, number in result.metrics.items():
                name = f"{result.benchmark}/{metric}"
                # Every rank has the same number: nothing to reduce, nothing to wait for.
                pl_module.log(name, number.value, rank_zero_only=False, batch_size=1)
                self._point(name, step, number.value)
        self._evaluated_at = step

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Writes the report."""
        self._seconds += time.monotonic() - self._started
        if not trainer.is_global_zero or not self.results:
            return
        path = Path(self.report or Path(trainer.default_root_dir) / "report.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.run_report(trainer, pl_module).save(path)

    def run_report(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> RunReport:
        """Returns the latest numbers with their provenance."""
        assert isinstance(pl_module, AdaptationModule)
        data = getattr(trainer, "datamodule", None)
        trained = (p.numel() for p in pl_module.parameters() if p.requires_grad)
        backbone, adapter = pl_module.backbone.spec(), pl_module.adapter.spec()
        provenance = Provenance(
            backbone=type(pl_module.backbone).__name__,
            adapter=type(pl_module.adapter).__name__,
            model={"backbone": backbone, "adapter": adapter},
            fingerprint=pl_module.backbone.fingerprint,
            data=", ".join(str(s.path) for s in data.sets["train"]) if data else "",
            config={
                "objectives": [o.spec() for o in pl_module.objectives],  # type: ignore[operator]
                "pairs": pl_module.pairs.spec(),
                "steps": trainer.global_step,
            },
            versions=library_versions(),
            commit=git_commit(Path.cwd()),
            date=now(),
            seed=pl_module.seed,
            trainable_parameters=sum(trained),
            seconds=self._seconds,
        )
        curves = {name: tuple(points) for name, points in self.curves.items()}
        return RunReport(self.name, provenance, tuple(self.results.values()), curves)

    def state_dict(self) -> dict[str, Any]:
        """The curves and the time so far: a resumed run reports the whole."""
        running = time.monotonic() - self._started if self._started else 0.0
        return {
            "curves": {name: list(points) for name, points in self.curves.items()},
            "seconds": self._seconds + running,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts the curves and the time back."""
        self.curves = {
            n: [(int(s), float(v)) for s, v in p] for n, p in state_dict["curves"].items()
        }
        self._seconds = float(state_dict["seconds"])

    def _point(self, name: str, step: int, value: float) -> None:
        points = self.curves.setdefault(name, [])
        if not points or points[-1][0] < step:
            points.append((step, value))

    @staticmethod
    def _is_last(trainer: pl.Trainer) -> bool:
        epochs, steps = trainer.max_epochs, trainer.max_steps
        return trainer.current_epoch + 1 == epochs or trainer.global_step == steps
