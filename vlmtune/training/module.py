"""The one LightningModule: training step, validation, optimizer and schedule, stop on NaN.

In: batches. Out: gradients of the weighted sum of losses, logs and checkpoints.
Never: anything that belongs to one method.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, cast

import torch
from annotated_types import Ge, Le
from pydantic import PositiveInt
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from typing_extensions import override

from vlmtune.adapters.base import Adapter, without_autocast
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.features.store_key import StoreDType
from vlmtune.objectives.base import Need, Objective, ShardedObjective
from vlmtune.pairs.all_pairs import AllPairs
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.batch_features import CorpusContent
from vlmtune.training.checkpoint_files import LAST_FINITE
from vlmtune.training.checkpointing import TrainedWeights
from vlmtune.training.finite import (
    BatchCheck,
    batch_check,
    finite_gradients,
    first_wrong_gradient,
    first_wrong_record,
    first_wrong_weight,
    gradient_norm,
)
from vlmtune.training.monitors import check_validated
from vlmtune.training.needs import check_needs, check_precision, check_teacher, warn_of_pairs
from vlmtune.training.optimization import ClipsGradients, parameter_groups, warmup_cosine
from vlmtune.training.score_shards import gather_all, local_scores
from vlmtune.training.scores import TrainingScores
from vlmtune.training.signals import Signals, StopsAtSignals
from vlmtune.training.validation import Validation, distinct_names
from vlmtune.types import Batch, ScoreShard, send

Fraction = Annotated[float, Ge(0), Le(1)]


def default_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Returns AdamW with learning rate 1e-3 and weight decay 1e-4."""
    return AdamW(parameters, lr=1e-3, weight_decay=1e-4)


class _BatchLoss(NamedTuple):
    """The loss of a batch."""

    part: Tensor  # this rank's part of the weighted sum, with gradients
    losses: list[tuple[str, Tensor]]  # of all ranks, and their weighted sum, by name
    shard: ScoreShard  # the rank's scores
    check: BatchCheck  # tells whether scores and losses are finite


class AdaptationModule(TrainedWeights, StopsAtSignals, ClipsGradients):
    r"""Trains an adapter on a backbone, to minimise a weighted sum of objectives.

    The loss is $\sum_k w_k L_k(\text{scores}, \text{targets})$. Frozen features come from the
    feature store if `store` is given, all others from the backbone in each step. Checkpoints hold
    the trained weights only, and are loaded strictly. (seed, step, rank) seed all randomness of a
    step (dropout, choice of pairs), so a resumed run repeats an uninterrupted one.

    On W ranks loss and gradient are those of one process with the batches of all ranks: embeddings
    of a dual adapter are gathered with their gradients, a caption of several ranks is one column,
    and each objective divides by counts over all ranks. Pairs of a joint adapter stay within a
    rank. Each rank validates on batches of its own; `Validation` adds up their numbers.

    A NaN or infinite score, loss or gradient stops the run on all ranks; the weights, finite before
    that step, are first saved as `last-before-nan.ckpt` in the trainer's root folder.

    Args:
        backbone: The pre-trained model.
        adapter: The trained part.
        objectives: Losses; the total is their weighted sum.
        pairs: Which pairs a joint adapter is trained on; all of them by default.
        optimizer: Makes the optimizer from parameter groups; `default_optimizer` by default.
            Vectors and scalars (biases, norms) have weight decay 0.
        warmup: Fraction of all steps over which the learning rate rises linearly.
        final_lr: Learning rate at the end of the cosine, as a fraction of the peak.
        store: Folder of feature stores, or None to run the backbone in each step.
        store_dtype: "float32", "float16" or "bfloat16" on disk; the latter two take half the space.
            Evaluations store float32, so that no store changes a number, and copy float32 rows.
        seed: Seeds weights and steps; None for 0 or, in `fit`, seed_everything. Data has its own.
        chunk: How many images or texts are embedded at a time, with activations computed again in
            the backward pass (GradCache, Gao et al. 2021): only its embeddings then limit a dual
            adapter's batch. None embeds all at once, which is faster.
        teacher: A trained model for `RankKL`, by any name that `vlmtune.load` takes: the folder of
            an export or a checkpoint.
        average_decay: Decay of the moving average of the trained weights that `DeGLA` reads.
        start_from: A trained model of the same backbone and adapter, by any such name: its weights
            are those of step 0. The optimizer and the steps are new.

    Raises:
        UserError: There is no objective, or one reads what adapter or backbone do not give.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        objectives: list[Objective],
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | None = None,
        warmup: Fraction = 0.05,
        final_lr: Fraction = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int | None = None,
        chunk: PositiveInt | None = None,
        teacher: str | None = None,
        average_decay: Fraction = 0.9996,
        start_from: str | None = None,
    ) -> None:
        super().__init__()
        check_needs(objectives, adapter, backbone)
        warn_of_pairs(pairs, adapter)
        needs = set[Need]().union(*[objective.needs for objective in objectives])
        self.backbone = backbone
        self.adapter = adapter
        self.objectives = nn.ModuleList(objectives)
        self.make_optimizer = optimizer or default_optimizer
        self.warmup = warmup
        self.final_lr = final_lr
        self.seed = seed or 0
        self.store = store
        self.store_dtype: StoreDType = store_dtype
        self.strict_loading = True
        # Read before the adapter may unfreeze or wrap weights: it names the pre-trained ones.
        self.fingerprint = backbone.fingerprint
        # Before the seed: the weights of a teacher are drawn, too, before they are loaded.
        self.teacher = None
        if teacher is not None:
            from vlmtune.training.teacher import load_teacher  # most runs have none

            self.teacher = load_teacher(teacher, whole="teacher_batch" in needs)
        torch.manual_seed(self.seed)
        pairs = pairs or AllPairs()
        self.scores = TrainingScores(backbone, adapter, pairs, needs, chunk, self.teacher)
        if start_from is not None:
            from vlmtune.training.start_from import start_from as load_weights  # few runs have one

            load_weights(start_from, backbone, adapter)
        self.original = self.scores.original  # registered, so that it moves between devices
        self.average_teacher = None
        if "average" in needs:
            from vlmtune.training.average_teacher import AverageTeacher  # few objectives read it

            self.average_teacher = AverageTeacher(backbone, adapter, average_decay)
        self.scores.average = self.average_teacher
        self._names = distinct_names(objectives)
        self.validation = Validation([*self._names, "loss"])
        self._first_key = ""  # of the first record of the present step, on this rank
        self._checks: list[BatchCheck] = []  # of the batches of the present step

    @override
    def setup(self, stage: str) -> None:
        super().setup(stage)
        check_precision(str(self.trainer.precision))

    @override
    def on_fit_start(self) -> None:
        """Sets training mode, which Lightning leaves to us, and opens the feature stores."""
        self.train()
        if self.trainer.checkpoint_callbacks:
            # Arguments that no checkpoint can hold fail here, not at the first checkpoint.
            self.backbone.spec()
            self.adapter.spec()
        check_validated(self.trainer)
        check_teacher(self._objectives(), self.teacher is not None)
        if self.store is not None:
            corpus: CorpusContent | None = getattr(self.trainer, "datamodule", None)
            if corpus is None:
                raise UserError(
                    "expected a datamodule to fill the store from, got none: pass one, or no store"
                )
            self.scores.open(Path(self.store), corpus, self.fingerprint, self.store_dtype)
        if self.teacher is not None:
            self.teacher.check_pixels(self.backbone)

    @property
    def preprocess(self) -> Callable[[Any], Tensor]:
        """Turns images into pixels, for the datamodule."""
        return self.backbone.preprocess

    @property
    def tokenize(self) -> Callable[[Sequence[str]], Tensor] | None:
        """Makes the tokens of captions, for the datamodule; None where it would not save time."""
        stored = self.store is not None and self.adapter.text_input.frozen
        return None if stored else self.backbone.tokenize

    @override
    def train(self, mode: bool = True) -> "AdaptationModule":
        """Sets training mode; a backbone, trained or not, stays in evaluation mode: no dropout."""
        super().train(mode)
        self.backbone.eval()  # no checkpoint has statistics of its batch norms
        if self.original is not None:
            self.original.eval()
        self.adapter.train(mode)  # some of its modules lie in the backbone
        return self

    @override
    def on_train_start(self) -> None:
        """Completes a resume."""
        super().on_train_start()
        if self.global_step:
            from vlmtune.training.resuming import resume  # most runs start anew

            resume(self)

    @override
    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        torch.manual_seed(self._step_seed(batch_idx))  # nothing earlier can change the step

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the weighted sum of the objectives."""
        if not self._accumulated(batch_idx):
            self._first_key = batch.keys[0]
            self._checks = []
        if self.average_teacher is not None:
            self.average_teacher.follow(self.backbone, self.adapter, self.global_step)
        group = ProcessGroup()
        # Ranks agree on signals where they agree that scores are finite.
        batch_loss = self._loss(batch, batch_idx, group, self.signals)
        self._checks.append(batch_loss.check)
        for name, loss in batch_loss.losses:
            whole = name == "loss"
            self.log(f"train/{name}", loss, prog_bar=whole, batch_size=len(batch.keys))
        self._diagnose(batch_loss.shard)
        # Lightning averages gradients over ranks, and they must be added.
        return group.size * batch_loss.part

    @override
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Stops the run before a NaN or an infinity would spoil all weights."""
        group = ProcessGroup()
        # Only gradients that the step uses can spoil weights.
        trained: list[nn.Parameter] = []
        for parameters in optimizer.param_groups:
            trained += parameters["params"]
        suspect = torch.zeros(1, device=trained[0].device)
        # The scaler of 16-mixed precision skips a step with such gradients by itself.
        if getattr(self.trainer.precision_plugin, "scaler", None) is None:
            finite = gradient_norm(trained).isfinite()
            suspect = group.sum(suspect + ~finite)
        checks, self._checks = self._checks, []
        # Here a step waits for the device: once for all its checks.
        sums = [check.sums for check in checks]
        suspects, *numbers = torch.cat([suspect, *sums]).tolist()
        for check in checks:
            count = len(check.sums)
            self._stop_if_wrong(check, numbers[:count], group, self.signals)
            numbers = numbers[count:]
        # The norm of finite gradients may be infinite, so suspects are looked at again.
        if not suspects or finite_gradients(trained, group):
            return
        # With DDP all ranks have one gradient, with FSDP2 only some hold the wrong part.
        wrong = first_wrong_gradient(self.named_parameters())
        by_rank = group.objects((wrong, self._first_key))
        wrong_names, first_keys = zip(*by_rank, strict=True)
        name = next(filter(None, wrong_names))
        got = f"NaN or infinity in the gradient of {name!r}"
        record = f"its batch begins with record {first_keys[0]!r}"
        self._stop("finite gradients", got, record, group)

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs losses and accuracy on held-out records; ranks may have unequal numbers of them."""
        group = ProcessGroup(alone=True)
        batch_loss = self._loss(batch, batch_idx, group)
        self._stop_if_wrong(batch_loss.check, batch_loss.check.sums.tolist(), group)
        records = len(batch.keys)
        shard = batch_loss.shard
        metrics = self.validation.update(batch_loss.losses, shard.rows, shard.row_targets, records)
        for name, metric in metrics.items():
            self.log(name, metric, prog_bar=name == "val/loss")

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Does nothing: `vlmtune test` runs the benchmarks of the BenchmarkCallback."""

    def _loss(
        self, batch: Batch, batch_idx: int, group: ProcessGroup, signals: Signals | None = None
    ) -> _BatchLoss:
        for line in batch.damaged:
            print(f"skipped a damaged record: {line}", flush=True)  # of any rank
        # With a separate generator, pairs do not depend on what else a step draws.
        generator = torch.Generator().manual_seed(self._step_seed(batch_idx))
        shard = self.scores.shard(batch, group, generator)
        # A part belongs to this rank and has gradients: the step returns it.
        objectives = self._objectives()
        parts = torch.stack([self._part(objective, shard, group) for objective in objectives])
        weights = torch.tensor([objective.weight for objective in objectives], dtype=parts.dtype)
        weights = send(weights, parts.device)
        part = (weights * parts).sum()
        # The losses are sums of the parts of all ranks, without gradients: they are logged. They
        # travel with the check, as every exchange waits for all ranks.
        check = batch_check(shard, parts, batch, group, signals)
        losses = check.sums[-len(objectives) :]
        loss = (weights * losses).sum()
        named_losses = [*zip(self._names, losses, strict=True), ("loss", loss)]
        return _BatchLoss(part, named_losses, shard, check)

    def _stop_if_wrong(
        self,
        check: BatchCheck,
        numbers: list[float],
        group: ProcessGroup,
        signals: Signals | None = None,
    ) -> None:
        """Stops at scores or losses that are not finite; `numbers` are the sums of the check."""
        # As `batch_check` put them in a row: wrong scores, signals, and a loss for each objective.
        wrong, *others = numbers
        losses = others[-len(self._names) :]
        if signals is not None:
            signals.agree(others[: -len(self._names)])
        if wrong:
            key = first_wrong_record(check, group)
            wanted = f"finite scores for {', '.join(self._names)}"
            self._stop(wanted, "NaN or infinity", f"first record {key!r}", group)
        for name, loss in zip(self._names, losses, strict=True):
            if not math.isfinite(loss):
                first_keys = group.objects(check.batch.keys[0])
                record = f"first record {first_keys[0]!r}"
                self._stop("a finite loss", f"{loss} from {name}", record, group)

    def _objectives(self) -> list[Objective]:
        """The objectives, which `ModuleList` types as any module."""
        return cast(list[Objective], list(self.objectives))

    def _part(self, objective: Objective, shard: ScoreShard, group: ProcessGroup) -> Tensor:
        """Returns this rank's part of a loss; the parts of all ranks add up to it."""
        # Mixed precision would round products of embeddings, as it would round scores.
        with without_autocast(shard.rows.values.device):
            if isinstance(objective, ShardedObjective):
                return objective.shard_loss(shard, group)
            scores, targets = gather_all(shard, group)
            return objective(scores, targets) / group.size

    def _diagnose(self, shard: ScoreShard) -> None:
        """Logs the diagnostics of objectives on the rank's own batch, at some steps."""
        every = getattr(self._trainer, "log_every_n_steps", None)
        # At the steps whose losses Lightning logs, and at the first, for what monitors them.
        steps = self.global_step
        if not every or (steps and (steps + 1) % every):
            return
        for of, objective in zip(self._names, self._objectives(), strict=True):
            scores, targets = local_scores(objective.scores_of(shard))
            diagnostics = objective.diagnose(scores, targets)
            for name, value in diagnostics.items():
                self.log(f"train/{of}/{name}", value)

    def _stop(self, expected: str, got: str, record: str, group: ProcessGroup) -> NoReturn:
        """Saves the weights if they are finite, and ends the run on every rank."""
        by_rank = group.objects(first_wrong_weight(self.state_dict()))
        wrong = next(filter(None, by_rank), None)  # all ranks must save, or none
        path = Path(self.trainer.default_root_dir) / LAST_FINITE
        if wrong is not None:
            advice = f"weights are not finite either, first {wrong!r}; resume from a checkpoint"
        elif group.size < self.trainer.world_size:  # saving waits for the other ranks
            advice = "resume from a checkpoint"
        else:
            self.trainer.save_checkpoint(path)
            advice = f"weights before this step are in {path}; resume from them"
        raise UserError(
            f"expected {expected}, got {got} at step {self.global_step} ({record}): "
            f"{advice} with a lower learning rate or 32-bit precision"
        )

    def _step_seed(self, batch_idx: int) -> int:
        trainer = self._trainer
        if trainer is None:
            return self.seed
        # Distinct for every (seed, step, rank): each factor exceeds the range of the next term. The
        # batches that one step accumulates are far apart.
        seed = self.seed * 1_000_003 + self.global_step
        seed = seed * 65_537 + trainer.global_rank
        seed = seed + self._accumulated(batch_idx) * 2**50
        return seed % 2**63

    def _accumulated(self, batch_idx: int) -> int:
        """Returns how many batches of the present step came before this one."""
        if self._trainer is None:
            return 0
        return batch_idx % self._trainer.accumulate_grad_batches

    @override
    def configure_optimizers(self) -> Any:
        """Returns the optimizer of the trained weights, with linear warm-up and cosine decay."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not trained:
            raise UserError(
                f"expected something to train, {type(self.adapter).__name__} has no trained "
                "parameter: choose another adapter, or use `vlmtune evaluate`"
            )
        # A group's scale has done its work once it is in the rate.
        groups = parameter_groups(trained, self.adapter.lr_scales())
        optimizer = self.make_optimizer(groups)
        for group in optimizer.param_groups:
            group["lr"] *= group.pop("scale", 1.0)
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise UserError(
                "expected a run with an end, which the learning rate falls to, got none: set "
                "trainer.max_steps or trainer.max_epochs"
            )
        factor = warmup_cosine(int(steps), self.warmup, self.final_lr)
        schedule = {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def adaptation(module: LightningModule) -> AdaptationModule:
    """The module of a callback's hook, which Lightning types as any module."""
    assert isinstance(module, AdaptationModule)
    return module
