"""A limit on forgetting: watches what a model could do before, and acts when it falls too far.

In: benchmarks of retained abilities, and the weights of the present step. Out: a line, an early
end, or weights nearer to the pre-trained ones. Never: a number in the report.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytorch_lightning as pl
from annotated_types import Ge, Lt
from pydantic import PositiveInt
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.evaluation.suite import load_all, run_suite
from vlmtune.model.model import Model
from vlmtune.model.resolving import attached
from vlmtune.model.wise_ft import WiseFT
from vlmtune.training.checkpoint_files import WITHIN
from vlmtune.training.ema import EMA
from vlmtune.training.evaluated_weights import evaluated_weights
from vlmtune.training.module import AdaptationModule, adaptation
from vlmtune.types import Batch

Action = Literal["warn", "stop", "anneal"]
STEPS = 16  # alphas that annealing chooses from: 0, 1/16, ..., 15/16

log = logging.getLogger("vlmtune")


class Drop(NamedTuple):
    """How far one retained ability has fallen."""

    fall: float  # as a fraction; negative if it is better
    benchmark: str
    before: float  # the primary metric of the model before training
    now: float  # the metric of the present weights


class RetentionBudget(Callback):
    r"""Compares retained abilities with the model before training, every `every_n_steps`.

    If the primary metric of a benchmark is more than `max_drop` below that of the pre-trained
    model, `action` decides:

    - `warn`: one line names the benchmark and both numbers.
    - `stop`: the run ends after this step. The weights of the last check that kept the budget are
      in `within-budget.ckpt`.
    - `anneal`: the weights go back to $\theta_0 + \alpha (\theta - \theta_0)$ and training
      continues from there. $\theta_0$ are the pre-trained weights. $\alpha$ is the largest of 0,
      1/16, ..., 15/16 that a bisection finds to keep the budget; 0 is the pre-trained model.

    The last step of `max_steps` or `max_epochs` is always checked, before a `ModelCheckpoint` saves
    it. An `EMA` has its averaged weights checked. All ranks share the work and decide alike.

    Source: the interpolation is WiSE-FT, Wortsman et al. 2022, equation (1), there after training.

    Args:
        benchmarks: The benchmarks; names must differ.
        max_drop: The allowed fall, as a fraction: 0.02 for two points.
        action: See above.
        every_n_steps: Optimizer steps between two checks.
        store: Folder of feature stores, or None to hold features in memory.

    Attributes:
        drops: The falls at the last check, worst first.

    Example:
        >>> RetentionBudget([], action="stop").max_drop
        0.02
    """

    def __init__(
        self,
        benchmarks: list[Benchmark],
        max_drop: Annotated[float, Ge(0), Lt(1)] = 0.02,
        action: Action = "warn",
        every_n_steps: PositiveInt = 500,
        store: str | None = None,
    ) -> None:
        self.benchmarks = benchmarks
        self.max_drop = max_drop
        self.action = action
        self.every_n_steps = every_n_steps
        self.store = None if store is None else Path(store)
        self.drops: list[Drop] = []
        self._before: Mapping[str, float] = {}
        self._scorer: Scorer | None = None
        self._checked = 0  # the step that was checked last

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Measures the model before training."""
        if stage != "fit":
            return
        module = adaptation(pl_module)
        if self.action == "anneal":
            callbacks = trainer.callbacks  # type: ignore[attr-defined]
            if any(isinstance(callback, EMA) for callback in callbacks):
                raise UserError(
                    "expected only RetentionBudget to change the weights, got EMA as well as the "
                    "action 'anneal': leave EMA out, or choose the action 'stop'"
                )
            WiseFT(module.backbone, module.adapter)  # refuses adapters that start at random
        load_all(self.benchmarks)
        spec = {"backbone": module.backbone.spec()}
        if module.adapter.identity_at_init:
            spec["adapter"] = module.adapter.spec()
        before = Model(*attached(spec)).to(trainer.strategy.root_device)
        self._before = self._measured(before.scorer(self.store))
        self._scorer = Scorer(module.backbone, module.adapter, self.store)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes where the run begins; a resumed run has checked its first step before."""
        self._checked = trainer.global_step

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Checks the budget at the end of a step."""
        module = adaptation(pl_module)
        step = trainer.global_step
        # With accumulated gradients several batches end at one step.
        due = _is_last(trainer) or step % self.every_n_steps == 0
        if step == self._checked or not due:
            return
        self._checked = step
        if self._keeps_budget(trainer, module):
            if self.action == "stop":
                trainer.save_checkpoint(Path(trainer.default_root_dir) / WITHIN)
        else:
            line = f"step {step}: {self._worst()}"
            if self.action == "stop":
                trainer.should_stop = True
                stops = "the run stops"
                if trainer.min_steps or trainer.min_epochs:
                    stops += " after its min_steps and min_epochs"
                line += f"; {stops}, {WITHIN} has the last weights within the budget, if any"
            elif self.action == "anneal":
                line += f"; weights set to alpha = {self._anneal(trainer, module):g}"
            if trainer.is_global_zero:
                log.warning(line)
        for logger in trainer.loggers:
            logger.log_metrics({"retained/worst_drop": self.drops[0].fall}, step)

    def _keeps_budget(self, trainer: pl.Trainer, module: AdaptationModule) -> bool:
        """Measures the present weights."""
        assert self._scorer is not None
        with evaluated_weights(trainer, module):
            metrics = self._measured(self._scorer)
        drops = []
        for name, before in self._before.items():
            now = metrics[name]
            drops.append(Drop(before - now, name, before, now))
        self.drops = sorted(drops, reverse=True)
        # A fall of exactly the budget may be more by rounding.
        return self.drops[0].fall <= self.max_drop + 1e-9

    def _worst(self) -> str:
        fall, name, before, now = self.drops[0]
        return (
            f"{name} fell from {before:.1%} before training to {now:.1%}, "
            f"{100 * fall:.1f} points of {100 * self.max_drop:g} allowed"
        )

    def _anneal(self, trainer: pl.Trainer, module: AdaptationModule) -> float:
        """Moves the weights back until they keep the budget; returns alpha."""
        line = WiseFT(module.backbone, module.adapter)
        # A bisection: `low` keeps the budget, as the pre-trained model does, and `high` does not.
        low = 0
        high = STEPS
        while high - low > 1:
            middle = (low + high) // 2
            line.at(middle / STEPS)
            if self._keeps_budget(trainer, module):
                low = middle
            else:
                high = middle
        line.at(low / STEPS)
        self._keeps_budget(trainer, module)  # for `drops`
        return low / STEPS

    def _measured(self, scorer: Scorer) -> dict[str, float]:
        """The primary metrics."""
        suite = run_suite(self.benchmarks, scorer)
        unfit: list[tuple[str, str]] = list(suite.not_run)
        values = {}
        for result in suite.results:
            metric = result.metrics[result.primary]
            values[result.benchmark] = metric.value
            # A fall is a difference of fractions: another unit has another limit.
            if metric.unit != "fraction" or not metric.higher_is_better:
                reason = "no fraction that is higher for a better model: watch another benchmark"
                unfit.append((result.benchmark, reason))
        for name, reason in unfit:
            raise UserError(f"expected to watch {name} with RetentionBudget, got {reason}")
        return values


def _is_last(trainer: pl.Trainer) -> bool:
    """Whether the present step is the last one that the run will take."""
    # Lightning's estimate is wrong after a resume with other batches, so it is not asked.
    batches = trainer.fit_loop.epoch_loop.batch_progress
    in_last_epoch = trainer.current_epoch + 1 == trainer.max_epochs
    ends = in_last_epoch and batches.is_last_batch
    return ends or trainer.global_step == trainer.max_steps
