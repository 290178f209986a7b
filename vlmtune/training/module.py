"""The one LightningModule: wires backbone, adapter and objectives; nothing in it knows a method."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from vlmtune.adapters.base import Adapter, load_trained_state, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import differences
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, Objective, ShardedObjective
from vlmtune.pairs.all_pairs import AllPairs
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.finite import (
    all_finite,
    finite_gradients,
    first_wrong_gradient,
    first_wrong_record,
    first_wrong_weight,
)
from vlmtune.training.inputs import StoreDType
from vlmtune.training.needs import check_needs
from vlmtune.training.optimization import parameter_groups, warmup_cosine
from vlmtune.training.score_shards import local_scores, whole
from vlmtune.training.scores import TrainingScores
from vlmtune.training.shard_layout import shard_layout
from vlmtune.types import Batch, ScoreShard

CHECKPOINT_VERSION = 1
LAST_FINITE = "last-before-nan.ckpt"
LIVE = "live_state_dict"  # in a checkpoint of averaged weights: those that training goes on with
AVERAGE = "average_state_dict"  # in one that training goes on from: the averaged weights


def default_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """AdamW with learning rate 1e-3 and weight decay 1e-4."""
    return AdamW(parameters, lr=1e-3, weight_decay=1e-4)


class AdaptationModule(pl.LightningModule):
    r"""Trains an adapter on a backbone to minimise $\sum_k w_k L_k(\text{scores}, \text{targets})$.

    Features of a modality come from the feature store where the adapter reads them frozen and
    `store` is given, else from the backbone in each step. Checkpoints hold what is trained and
    nothing else, and are loaded strictly. All randomness of a step (dropout, choice of pairs) is
    seeded by (seed, step, rank), so a resumed run repeats an uninterrupted one.

    On W ranks loss and gradient are those of one process with the batches of all ranks: embeddings
    of a dual adapter are gathered with their gradients, a caption that several ranks have is one
    column, and each objective divides by counts over all ranks. Pairs of a joint adapter stay
    within a rank. Validation losses are means over the ranks' own batches.

    A score, a loss or a gradient that is no finite number stops the run on all ranks; the weights,
    finite before that step, are first saved as `last-before-nan.ckpt` in the trainer's root folder.

    Args:
        backbone: The pre-trained model.
        adapter: What is trained on it.
        objectives: Losses; the total is their weighted sum.
        pairs: Which pairs a joint adapter is trained on; all of them by default.
        optimizer: Makes the optimizer from parameter groups. Vectors and scalars (biases, norms)
            are given weight decay 0.
        warmup: Share of all steps over which the learning rate rises linearly.
        final_lr: Learning rate at the end of the cosine, as a share of the peak.
        store: Folder of feature stores, or None to run the backbone in each step.
        store_dtype: "float32", "float16" or "bfloat16" on disk. The latter take half the space.
            Evaluations store float32, so that no store changes a number, and share rows with that.
        seed: Seeds the steps; the order of the data has its own seed.
        chunk: How many images or texts are embedded at a time, with activations computed again in
            the backward pass (GradCache, Gao et al. 2021): a dual adapter's batch is then limited
            by its embeddings only. None embeds all at once and keeps activations, which is faster.

    Raises:
        UserError: No objective, one that needs what the adapter or backbone cannot give, a schedule
            out of range, or a chunk below 1.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        objectives: list[Objective],
        pairs: PairPolicy | None = None,
        optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = default_optimizer,
        warmup: float = 0.05,
        final_lr: float = 0.0,
        store: str | None = None,
        store_dtype: StoreDType = "float32",
        seed: int = 0,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        if not objectives:
            raise UserError(
                "expected at least one objective, got none: list one under `objectives`"
            )
        if not (0 <= warmup <= 1 and 0 <= final_lr <= 1):
            raise UserError(
                f"expected warmup and final_lr in [0, 1], got {warmup} and {final_lr}: "
                "both are shares"
            )
        if chunk is not None and chunk < 1:
            raise UserError(
                f"expected a chunk of at least 1, got {chunk}: raise it or leave it out"
            )
        check_needs(objectives, adapter, backbone)
        needs = frozenset[Need]().union(*(objective.needs for objective in objectives))
        self.backbone, self.adapter = backbone, adapter
        self.objectives = nn.ModuleList(objectives)
        self.make_optimizer = optimizer
        self.warmup, self.final_lr, self.seed = warmup, final_lr, seed
        self.store = store
        self.store_dtype: StoreDType = store_dtype
        self.strict_loading = True
        # Taken before the adapter may unfreeze or wrap anything: it names the weights trained on.
        self.fingerprint = backbone.fingerprint
        torch.manual_seed(seed)
        self.scores = TrainingScores(backbone, adapter, pairs or AllPairs(), needs, chunk)
        self.original = self.scores.original  # registered, so that it moves between devices
        self._begins = ""  # key of the first record of the present step, of this rank

    # -- features and scores ------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Builds or opens the feature stores, so that frozen work is done once."""
        if self.store is None:
            return
        data, root = getattr(self.trainer, "datamodule", None), Path(self.store)
        if data is None:
            raise UserError(
                "expected a datamodule to fill the feature store from, got none: "
                "fit with a ShardDataModule or set store to null"
            )
        inputs, reference = self.scores.inputs, self.scores.reference
        inputs.open(root, data, self.fingerprint, self.store_dtype)
        if "image" in inputs.stored:
            data.decode_images, data.stored_images = False, inputs.stored["image"]
        if "reference" in self.scores.needs:
            reference.open(root, data, self.fingerprint, self.store_dtype)

    @property
    def pairs(self) -> PairPolicy:
        """Which pairs a joint adapter is trained on."""
        return self.scores.pairs

    # -- training -----------------------------------------------------------------------------

    def train(self, mode: bool = True) -> "AdaptationModule":
        """Sets training mode, but never for a backbone that is frozen (its dropout stays off)."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        if self.original is not None:
            self.original.eval()
        return self

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds the step, so that what ran before it cannot change it."""
        del batch
        torch.manual_seed(self._step_seed(batch_idx))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the weighted sum of the objectives."""
        if not self._accumulated(batch_idx):
            self._begins = batch.keys[0]
        for line in batch.damaged:
            self.print(f"skipped a damaged record: {line}")
        return self._loss(batch, batch_idx, "train")

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Stops where a gradient of a finite loss is no number: the step would spoil all weights.

        Raises:
            UserError: A gradient is NaN or infinite.
        """
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            return  # of 16-mixed precision, which skips such a step by itself
        ranks = ProcessGroup()
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        if not finite_gradients(trained, ranks):
            wrong = ranks.objects((first_wrong_gradient(self.named_parameters()), self._begins))
            got = f"NaN or infinity in that of {next(name for name, _ in wrong if name)!r}"
            begins = f"its batch begins with record {wrong[0][1]!r}"
            self._stop("finite gradients", got, begins, ranks)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the objectives on held-out records, of which ranks may have unequal numbers."""
        self._loss(batch, batch_idx, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Does nothing: `vlmtune test` runs the benchmarks of the Evaluation callback."""
        del batch, batch_idx

    def _loss(self, batch: Batch, batch_idx: int, stage: Literal["train", "val"]) -> Tensor:
        ranks = ProcessGroup(alone=stage == "val")
        where = shard_layout(batch, ranks, merged=not self.adapter.joint)
        generator = torch.Generator().manual_seed(self._step_seed(batch_idx))
        share = self.scores.share(batch, where, ranks, generator)
        objectives = cast(list[Objective], list(self.objectives))
        names = [type(objective).__name__ for objective in objectives]
        if not all_finite(share, ranks):
            key = first_wrong_record(share, batch, where, ranks)
            wanted = f"finite scores for {', '.join(names)}"
            self._stop(wanted, "NaN or infinity", f"first record {key!r}", ranks)
        parts = torch.stack([self._part(objective, share, ranks) for objective in objectives])
        weights = parts.new_tensor([objective.weight for objective in objectives])
        losses = ranks.sum(parts.detach())
        if wrong := (~losses.isfinite()).nonzero().flatten().tolist():
            key = ranks.objects(batch.keys[0])[0]
            got = f"{losses[wrong[0]]} from {names[wrong[0]]}"
            self._stop("a finite loss", got, f"first record {key!r}", ranks)
        logged = {"batch_size": len(batch.keys), "sync_dist": stage == "val"}
        for name, loss in zip(names, losses, strict=True):
            self.log(f"{stage}/{name}", loss, **logged)
        self.log(f"{stage}/loss", (weights * losses).sum(), prog_bar=True, **logged)
        if stage == "train":
            self._diagnose(share)
        # Lightning averages gradients over ranks where they belong added.
        return ranks.size * (weights * parts).sum()

    def _diagnose(self, share: ScoreShard) -> None:
        """Logs now and then what objectives say of the rank's own batch beside their loss."""
        every = getattr(self._trainer, "log_every_n_steps", None)
        if not every or self.global_step % every:
            return
        for objective in cast(list[Objective], list(self.objectives)):
            for name, value in objective.diagnose(*local_scores(share)).items():
                self.log(f"train/{type(objective).__name__}/{name}", value)

    def _part(self, objective: Objective, share: ScoreShard, ranks: ProcessGroup) -> Tensor:
        """This rank's part of a loss; the parts of all ranks add up to it."""
        if isinstance(objective, ShardedObjective):
            return objective.shard_loss(share, ranks)
        return objective(*whole(share, ranks)) / ranks.size

    def _stop(self, expected: str, got: str, where: str, ranks: ProcessGroup) -> NoReturn:
        """Saves the weights as they are, if they are numbers, and ends the run on every rank."""
        found = ranks.objects(first_wrong_weight(self.state_dict()))
        wrong = next((name for name in found if name), None)  # all ranks must save or none
        path = Path(self.trainer.default_root_dir) / LAST_FINITE
        if wrong is not None:
            then = f"weights are not finite either, first {wrong!r}; resume from a checkpoint"
        elif ranks.size < self.trainer.world_size:  # saving waits for the other ranks
            then = "resume from a checkpoint"
        else:
            self.trainer.save_checkpoint(path)
            then = f"weights before this step are in {path}; resume from them"
        raise UserError(
            f"expected {expected}, got {got} at step {self.global_step} ({where}): "
            f"{then} with a lower learning rate or 32-bit precision"
        )

    def _step_seed(self, batch_idx: int) -> int:
        trainer = self._trainer
        if trainer is None:
            return self.seed
        # Distinct for every (seed, step, rank): each factor exceeds what the next can reach. The
        # batches that one step accumulates lie far apart.
        seed = (self.seed * 1_000_003 + self.global_step) * 65_537 + trainer.global_rank
        return (seed + self._accumulated(batch_idx) * 2**50) % (2**63)

    def _accumulated(self, batch_idx: int) -> int:
        """How many batches of the present step came before this one."""
        return batch_idx % (self._trainer.accumulate_grad_batches if self._trainer else 1)

    def configure_optimizers(self) -> Any:
        """Optimizer over what is trained, with linear warm-up and cosine decay per step."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not trained:
            raise UserError(
                f"expected something to train, {type(self.adapter).__name__} has no trained "
                "parameter: choose another adapter, or use `vlmtune evaluate`"
            )
        optimizer = self.make_optimizer(parameter_groups(trained, self.adapter.lr_scales()))
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * group.pop("scale", 1.0)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = LambdaLR(optimizer, warmup_cosine(steps, self.warmup, self.final_lr))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    # -- checkpoints --------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns what is trained and nothing else."""
        del args, kwargs
        return dict(trained_state(self.backbone, self.adapter))

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Puts a `state_dict` back, always strictly.

        Raises:
            UserError: Names or shapes differ.
        """
        del strict, assign
        load_trained_state(self.backbone, self.adapter, state_dict, "the checkpoint")
        return nn.modules.module._IncompatibleKeys([], [])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what is needed to make the model again."""
        checkpoint["vlmtune"] = {
            "version": CHECKPOINT_VERSION,
            "backbone": self.backbone.spec(),
            "fingerprint": self.fingerprint,
            "adapter": self.adapter.spec(),
            "objectives": self._objective_states(),
        }

    def _objective_states(self) -> dict[str, dict[str, Tensor]]:
        """What objectives remember from step to step, by place and name; most remember nothing."""
        states = {
            f"{place} {type(objective).__name__}": dict(objective.state_dict())
            for place, objective in enumerate(self.objectives)
        }
        return {name: state for name, state in states.items() if state}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint of another adapter or backbone; training takes live weights from it.

        Raises:
            UserError: The checkpoint is not from this adapter and this backbone.
        """
        made = checkpoint.get("vlmtune")
        if made is None:
            raise UserError(
                "expected a checkpoint of vlmtune, got a foreign one: correct --ckpt_path"
            )
        if other := differences(self.adapter.spec(), made["adapter"], "adapter", "the checkpoint"):
            raise UserError(
                f"expected a checkpoint of this adapter, got {', '.join(other)}: "
                "use the config it was trained with"
            )
        if made["fingerprint"] != self.fingerprint:
            raise UserError(
                f"expected a checkpoint trained on {self.backbone.spec()}, got one trained on "
                f"{made['backbone']} with other weights: use that backbone"
            )
        for name, state in made.get("objectives", {}).items():
            if name in self._objective_states():  # another list of objectives starts anew
                self.objectives[int(name.split()[0])].load_state_dict(state)
        if LIVE in checkpoint and self._trainer is not None and self._trainer.state.fn == "fit":
            checkpoint[AVERAGE] = checkpoint["state_dict"]
            checkpoint["state_dict"] = checkpoint[LIVE]
