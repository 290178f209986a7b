"""The one LightningModule: wires backbone, adapter and objectives; nothing in it knows a method."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from vlmtune.adapters.base import Adapter, load_trained_state, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.features import FeatureStore, StoreKey, open_or_build, source_digest
from vlmtune.objectives.base import Objective
from vlmtune.pairs import AllPairs, PairPolicy
from vlmtune.types import Batch, Features, Reads, Scores

CHECKPOINT_VERSION = 1
StoreDType = Literal["float32", "float16", "bfloat16"]


def default_optimizer(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """AdamW with learning rate 1e-3 and weight decay 1e-4."""
    return AdamW(parameters, lr=1e-3, weight_decay=1e-4)


class AdaptationModule(pl.LightningModule):
    r"""Trains an adapter on a backbone to minimise $\sum_k w_k L_k(\text{scores}, \text{targets})$.

    Features of a modality come from the feature store where the adapter reads them frozen and
    `store` is given, else from the backbone in each step. Checkpoints hold what is trained and
    nothing else, and are loaded strictly. All randomness of a step (dropout, choice of pairs) is
    seeded by (seed, step, rank), so a resumed run repeats an uninterrupted one.

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
        store_dtype: "float32", "float16" or "bfloat16" on disk.
        seed: Seeds the steps; the order of the data has its own seed.

    Raises:
        UserError: No objective, or a schedule out of range.
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
        self.backbone, self.adapter = backbone, adapter
        self.objectives = nn.ModuleList(objectives)
        self.pairs = pairs or AllPairs()
        self.make_optimizer = optimizer
        self.warmup, self.final_lr, self.seed = warmup, final_lr, seed
        self.store = store
        self.store_dtype: StoreDType = store_dtype
        self.stored: dict[str, FeatureStore] = {}
        self.strict_loading = True
        # Taken before the adapter may unfreeze or wrap anything: it names the weights trained on.
        self.fingerprint = backbone.fingerprint
        torch.manual_seed(seed)
        adapter.attach(backbone)

    # -- features and scores ------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Builds or opens the feature stores, so that frozen work is done once."""
        if self.store is None:
            return
        data, root = self._data(), Path(self.store)
        images, texts = data.distinct_counts()
        if self.adapter.image_reads.frozen:
            key = self._key("image", self.adapter.image_reads)
            self.stored["image"] = open_or_build(root, key, self._encode_images, images)
            data.decode_images, data.stored_images = False, self.stored["image"]
        if self.adapter.text_reads.frozen:
            key = self._key("text", self.adapter.text_reads)
            self.stored["text"] = open_or_build(root, key, self._encode_texts, texts)

    def _data(self) -> Any:
        data = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise UserError(
                "expected a datamodule to fill the feature store from, got none: "
                "fit with a ShardDataModule or set store to null"
            )
        return data

    def _key(self, modality: Literal["image", "text"], reads: Reads) -> StoreKey:
        source = source_digest([self._data().digest("train"), self._data().digest("val")])
        return StoreKey(self.fingerprint, modality, reads, source, self.store_dtype)

    def _encode_images(self) -> Iterable[tuple[tuple[str, ...], Features]]:
        for ids, pixels in self._data().distinct_images(self.backbone.preprocess):
            with torch.no_grad():
                features = self.backbone.encode_image(
                    pixels.to(self.device), self.adapter.image_reads
                )
            yield ids, features.to("cpu")

    def _encode_texts(self) -> Iterable[tuple[tuple[str, ...], Features]]:
        texts = self._data().distinct_texts()
        for start in range(0, len(texts), 512):
            block = texts[start : start + 512]
            with torch.no_grad():
                features = self.backbone.encode_text(block, self.adapter.text_reads)
            yield tuple(block), features.to("cpu")

    def image_features(self, batch: Batch) -> Features:
        """Returns the features of the batch's N images, stored or fresh."""
        if "image" in self.stored:
            return self.stored["image"].features(batch.image_ids).to(self.device)
        assert batch.pixels is not None
        return self.backbone.encode_image(batch.pixels, self.adapter.image_reads)

    def text_features(self, batch: Batch) -> Features:
        """Returns the features of the batch's M texts, stored or fresh."""
        if "text" in self.stored:
            return self.stored["text"].features(batch.texts).to(self.device)
        return self.backbone.encode_text(batch.texts, self.adapter.text_reads)

    def forward(self, batch: Batch) -> Scores:
        """Scores the pairs of a batch that training needs."""
        pairs = None
        if self.adapter.joint:
            generator = torch.Generator().manual_seed(self._step_seed())
            pairs = self.pairs(batch.targets, generator)
        return self.adapter(self.image_features(batch), self.text_features(batch), pairs)

    # -- training -----------------------------------------------------------------------------

    def train(self, mode: bool = True) -> "AdaptationModule":
        """Sets training mode, but never for a backbone that is frozen (its dropout stays off)."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        return self

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds the step, so that what ran before it cannot change it."""
        del batch, batch_idx
        torch.manual_seed(self._step_seed())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the weighted sum of the objectives."""
        del batch_idx
        for line in batch.damaged:
            self.print(f"skipped a damaged record: {line}")
        return self._loss(batch, "train")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the objectives on held-out records."""
        del batch_idx
        self._loss(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Does nothing: `vlmtune test` runs the benchmarks of the Evaluation callback."""
        del batch, batch_idx

    def _loss(self, batch: Batch, stage: str) -> Tensor:
        scores = self(batch)
        total = scores.values.new_zeros(())
        for objective in self.objectives:
            assert isinstance(objective, Objective)
            loss = objective(scores, batch.targets)
            name = type(objective).__name__
            if not torch.isfinite(loss):
                raise UserError(
                    f"expected a finite loss, got {loss.item()} from {name} at step "
                    f"{self.global_step} (first record {batch.keys[0]!r}): "
                    "lower the learning rate or use 32-bit precision"
                )
            self.log(f"{stage}/{name}", loss, batch_size=len(batch.keys))
            total = total + objective.weight * loss
        self.log(f"{stage}/loss", total, prog_bar=True, batch_size=len(batch.keys))
        return total

    def _step_seed(self) -> int:
        # Distinct for every (seed, step, rank): each factor exceeds what the next can reach.
        rank = self.trainer.global_rank if self._trainer is not None else 0
        step = self.global_step if self._trainer is not None else 0
        return ((self.seed * 1_000_003 + step) * 65_537 + rank) % (2**63)

    def configure_optimizers(self) -> Any:
        """Optimizer over what is trained, with linear warm-up and cosine decay per step."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not trained:
            raise UserError(
                f"expected something to train, {type(self.adapter).__name__} has no trained "
                "parameter: choose another adapter, or use `vlmtune evaluate`"
            )
        matrices = [p for p in trained if p.ndim > 1]
        vectors = [p for p in trained if p.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": matrices}] if matrices else []
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        optimizer = self.make_optimizer(groups)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = LambdaLR(optimizer, self._schedule(steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _schedule(self, steps: int) -> Callable[[int], float]:
        rise = max(1, round(self.warmup * steps))

        def factor(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            progress = min(1.0, (step - rise) / max(1, steps - rise))
            return self.final_lr + (1 - self.final_lr) * (1 + math.cos(math.pi * progress)) / 2

        return factor

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
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint of another adapter or backbone.

        Raises:
            UserError: The checkpoint is not from this adapter and this backbone.
        """
        made = checkpoint.get("vlmtune")
        if made is None:
            raise UserError(
                "expected a checkpoint of vlmtune, got a foreign one: correct --ckpt_path"
            )
        if made["adapter"] != self.adapter.spec():
            raise UserError(
                f"expected a checkpoint of {self.adapter.spec()}, got one of {made['adapter']}: "
                "use the config it was trained with"
            )
        if made["fingerprint"] != self.fingerprint:
            raise UserError(
                f"expected a checkpoint trained on {self.backbone.spec()}, got one trained on "
                f"{made['backbone']} with other weights: use that backbone"
            )
