"""What a training checkpoint holds: the trained weights, and the specs they belong to.

In: backbone, adapter and objectives. Out: a state dict of the trained weights, and strict loading.
Never: frozen weights. `cli.run_folder.AtomicCheckpoints` writes the file and
`export.read_checkpoint` reads it; the loader, `EMA` and `BenchmarkCallback` add their state.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import load_trained_state, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import differences
from vlmtune.errors import UserError
from vlmtune.model.loading import LIVE

if TYPE_CHECKING:  # few runs have one
    from vlmtune.training.average_teacher import AverageTeacher

CHECKPOINT_VERSION = 1  # of the content; checkpoints of any other are refused
AVERAGE_TEACHER = "average_teacher"  # what an objective learns from, not what is evaluated
AVERAGE = "average_state_dict"  # while such a checkpoint is resumed: the averaged weights
MEASURED = "measured"  # the latest value of each logged number


class TrainedWeights(pl.LightningModule):
    """A module whose checkpoints hold the trained weights only, and are loaded strictly."""

    backbone: Backbone
    adapter: Adapter
    objectives: nn.ModuleList
    fingerprint: str  # of the backbone before training
    make_optimizer: Callable[..., Optimizer]
    average_teacher: "AverageTeacher | None"
    measured: Mapping[str, Tensor] = {}  # what a resumed run had logged

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the trained weights only."""
        return dict(trained_state(self.backbone, self.adapter))

    @override
    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Loads the trained weights, always strictly."""
        load_trained_state(self.backbone, self.adapter, state_dict, "the checkpoint")
        return nn.modules.module._IncompatibleKeys([], [])

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds specs, the class of the optimizer, and the numbers that callbacks monitor."""
        checkpoint["vlmtune"] = {
            "version": CHECKPOINT_VERSION,
            "backbone": self.backbone.spec(),
            "fingerprint": self.fingerprint,
            "adapter": self.adapter.spec(),
            "objectives": self._objective_states(),
            "optimizer": self._optimizer(),
        }
        checkpoint[MEASURED] = {}
        for name, value in self.trainer.callback_metrics.items():
            checkpoint[MEASURED][name] = torch.as_tensor(value, device="cpu")
        if self.average_teacher is not None:
            checkpoint[AVERAGE_TEACHER] = self.average_teacher.saved()

    def _optimizer(self) -> str:
        """Returns the class of the optimizer, known before it is made over the weights."""
        groups = [{"params": [nn.Parameter(torch.zeros(1))]}]
        optimizer = self.make_optimizer(groups)
        return type(optimizer).__qualname__

    def _objective_states(self) -> dict[str, dict[str, Tensor]]:
        """Returns the states of objectives by number and name; most have none."""
        states = {}
        for number, objective in enumerate(self.objectives):
            state = dict(objective.state_dict())
            if state:
                states[f"{number} {type(objective).__name__}"] = state
        return states

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks the origin of a checkpoint; training takes the live weights from it."""
        saved = checkpoint.get("vlmtune")
        if saved is None:
            raise UserError("expected a vlmtune checkpoint, got another: pass one as --ckpt-path")
        other = differences(self.adapter.spec(), saved["adapter"], "adapter", "the checkpoint")
        if other:
            raise UserError(
                f"expected a checkpoint of this adapter, got {', '.join(other)}: "
                "use the config it was trained with"
            )
        if saved["fingerprint"] != self.fingerprint:
            raise UserError(
                f"expected a checkpoint trained on {self.backbone.spec()}, got one trained on "
                f"{saved['backbone']} with other weights: use that backbone"
            )
        fits = self._trainer is not None and self._trainer.state.fn == "fit"
        optimizer = self._optimizer()
        if fits and saved.get("optimizer", optimizer) != optimizer:
            # Its state would be loaded into another optimizer without a word.
            raise UserError(
                f"expected a checkpoint of {optimizer}, got one of {saved['optimizer']}: resume "
                "with that optimizer"
            )
        # Objectives are known by number and class: a changed list keeps the states that still fit.
        states = self._objective_states()
        for name, state in saved.get("objectives", {}).items():
            if name in states:  # other objectives start without a state
                number, _ = name.split()
                self.objectives[int(number)].load_state_dict(state)
        # A ShardDataModule counts positions in the data where Lightning counts batches.
        datamodule = getattr(self._trainer, "datamodule", None)
        align = getattr(datamodule, "align", None)
        if align is not None:
            align(checkpoint)
        self.measured = dict(checkpoint.get(MEASURED, {}))
        if LIVE in checkpoint and fits:
            checkpoint[AVERAGE] = checkpoint["state_dict"]
            checkpoint["state_dict"] = checkpoint[LIVE]
        if self.average_teacher is not None:
            # A run that had none continues with its weights, not with those before training.
            weights = {"step": checkpoint["global_step"], "weights": checkpoint["state_dict"]}
            self.average_teacher.restore(checkpoint.get(AVERAGE_TEACHER, weights))
