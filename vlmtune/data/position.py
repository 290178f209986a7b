"""Where training is in the data: the epoch, and the positions of it before the last optimizer step.

In: the counters of a trainer's loops. Out: what a checkpoint keeps, and where a resumed run begins.
Never: an order of records, or an import of Lightning.

Lightning counts batches. Positions count groups over all ranks, so they mean the same with any
number of ranks and any batch size. On resuming, `align` turns them into Lightning's counts again.
"""

from typing import Any

from vlmtune.data.loader import EpochLoader, Position
from vlmtune.errors import UserError

_COUNTERS = ("ready", "started", "processed", "completed")


class TrainingPosition:
    """Follows a run through its epochs."""

    def __init__(self) -> None:
        self._epoch = -1  # of the present loop over the loader; -1 before the first
        self._start = 0  # its first position
        self._before = 0  # batches of the run before it
        self._left = 0  # batches from there to the end of the epoch
        self._resumed: dict[str, Any] | None = None  # until the first batch is fetched

    def begin(self, trainer: Any, loader: EpochLoader) -> Position:
        """Returns epoch and position of the next batches, at the first batch of an epoch."""
        progress = trainer.fit_loop.epoch_loop.batch_progress
        batches = int(trainer.num_training_batches)
        left = batches - progress.current.completed
        if left <= 0:  # a resumed epoch that had ended: nothing is read
            return 0, loader.stream.positions
        # The first epoch of a process may be resumed; the next ones follow it.
        if self._resumed is not None:
            resumed = self._resumed
            self._resumed = None  # only the first epoch begins where the checkpoint ends
            self._epoch = int(resumed["epoch"])
            self._start = int(resumed["samples"])
            if _left(self._start, batches, loader) != left:
                raise UserError(
                    f"expected {left} batches to the end of the epoch, got a checkpoint at "
                    f"position {self._start}: call `align` of the datamodule in "
                    "on_load_checkpoint of the module"
                )
            loader.check_order(resumed["order"], within_epoch=self._start > 0)
        else:
            self._epoch = trainer.current_epoch if self._epoch < 0 else self._epoch + 1
            self._start = 0
        self._before = progress.total.processed
        self._left = left
        return self._epoch, self._start

    def state(self, trainer: Any, loader: EpochLoader) -> dict[str, Any]:
        """Returns the position after the last optimizer step.

        Gradients of later batches are in no checkpoint; a resumed run reads these batches again.
        """
        # Lightning saves between `processed` and `completed` of a batch.
        progress = trainer.fit_loop.epoch_loop.batch_progress
        ended = progress.current.processed >= trainer.num_training_batches
        epoch = samples = pending = 0
        if self._resumed is not None:
            epoch = self._resumed["epoch"]
            samples = self._resumed["samples"]
        elif self._epoch >= 0:
            done = progress.total.processed - self._before
            if done >= self._left:
                epoch = self._epoch + 1
            else:
                # Batches since the last optimizer step are pending: their gradients are lost.
                since_step = progress.current.processed % trainer.accumulate_grad_batches
                pending = min(done, since_step)
                epoch = self._epoch
                samples = self._start + (done - pending) * _step(loader)
        return {
            "epoch": epoch,
            "samples": samples,
            "pending": pending,
            "ended": ended,
            "order": loader.order(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Takes the position of a checkpoint."""
        self._resumed = dict(state)


def align(state: dict[str, Any], loops: dict[str, Any], trainer: Any, loader: EpochLoader) -> None:
    """Changes the batches that a checkpoint counts to those of this run.

    They differ if the number of ranks or the batch size does, or if the checkpoint was written
    between two optimizer steps.
    """
    batches = len(loader)
    limit = trainer.limit_train_batches
    # Lightning takes a whole number as batches, and a float as a fraction of them.
    if isinstance(limit, int):
        batches = min(batches, limit)
    elif limit is not None:
        batches = int(batches * limit)
    left = 0
    if not state["ended"]:
        left = _left(state["samples"], batches, loader)
        if left == 0:  # too few groups for a batch of this run
            state |= {"epoch": state["epoch"] + 1, "samples": 0}
    progress = loops["epoch_loop.batch_progress"]
    current = progress["current"]
    total = progress["total"]
    pending = state["pending"]
    if pending and current["processed"] > current["completed"]:
        # Lightning adds the last step, which it had not counted when it saved.
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    shift = batches - left - current["processed"]
    for name in _COUNTERS:
        current[name] += shift
        total[name] -= pending
    progress["is_last_batch"] = left == 0


def _step(loader: EpochLoader) -> int:
    """Positions of a global batch."""
    return loader.stream.batch_size * loader.world


def _left(samples: int, batches: int, loader: EpochLoader) -> int:
    """Batches from a position to the end of an epoch that has `batches` from its start."""
    step = _step(loader)
    # With all batches the positions of the epoch are the limit, which may end in a part of a batch.
    limited = batches < len(loader)
    total = batches * step if limited else loader.stream.positions
    return max(0, (total - samples) // step)
