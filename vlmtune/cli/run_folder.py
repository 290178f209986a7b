"""The folder of a training run: which, who may write to it, whole checkpoints, and `metrics.csv`.

In: a trainer, checkpoints and logged numbers. Out: the files.
Never: two runs that write the same files, at once or one after the other.
"""

import contextlib
import csv
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from filelock import Timeout
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.loggers.logger import rank_zero_experiment
from pytorch_lightning.plugins.environments import SLURMEnvironment
from pytorch_lightning.plugins.io import TorchCheckpointIO
from typing_extensions import override

from vlmtune.errors import UserError
from vlmtune.model.loading import check_checkpoint, is_checkpoint, on_cpu
from vlmtune.storage.files import beside, write_atomically
from vlmtune.storage.folder import locked
from vlmtune.training.checkpoint_files import LAST, LAST_FINITE, ON_SIGNAL, WITHIN

CHECKPOINTS = LAST.split("/")[0]
SINGLE = (ON_SIGNAL, LAST_FINITE, WITHIN)  # checkpoints beside the folder of checkpoints
WRITTEN = ("config.yaml", "metrics.csv", "report.json", CHECKPOINTS, *SINGLE)
"""What a run writes into its folder, besides its loggers."""
log = logging.getLogger("vlmtune")


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all, whenever a run is killed.

    Lightning writes to the system's temporary folder and copies if that is another file system.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        if "://" in str(path):  # an object store writes whole files itself
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path).resolve()
        with write_atomically(path) as temporary:
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                # On disk before the rename, or a power cut could leave an empty file.
                file.flush()
                os.fsync(file.fileno())
            if path.is_dir() and is_checkpoint(path):  # a file cannot replace a folder
                path.replace(beside(path, "old"))

    @override
    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Checks a local file before it is loaded: torch compares no checksum."""
        if "://" in str(path):
            return super().load_checkpoint(path, *arguments, **options)
        return check_checkpoint(path, on_cpu)


class LastCheckpoint(Callback):
    """Saves `last.ckpt` again at the end of a run, if it lacks the last steps.

    With `every_n_train_steps: 100` Lightning would leave step 100 in it after 150 steps.
    """

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for callback in trainer.checkpoint_callbacks:
            # A link points to a checkpoint of another step, which must stay as it is.
            if not isinstance(callback, ModelCheckpoint) or callback.save_last is not True:
                continue
            is_old = callback._last_global_step_saved < trainer.global_step
            if callback.last_model_path and is_old:
                trainer.save_checkpoint(callback.last_model_path, callback.save_weights_only)


class MetricsFile(CSVLogger):
    """Writes what a run logs to `metrics.csv` in its folder; `appends` keeps the lines there."""

    def __init__(self, folder: str | Path, appends: bool) -> None:
        super().__init__(folder, name="", version="")
        self._appends = appends

    @property
    @override
    def log_dir(self) -> str:
        return str(self.save_dir)

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._experiment is None:
            self._experiment = _Rows(self.log_dir, self._appends)
        return self._experiment

    @override
    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        """Writes nothing: `config.yaml` has them."""


class _Rows(ExperimentWriter):
    """Lightning's writer, which would delete the lines of a run that is resumed."""

    def __init__(self, folder: str, appends: bool) -> None:
        self._appends = appends
        super().__init__(folder)

    def _check_log_dir_exists(self) -> None:
        path = Path(self.metrics_file_path)
        if self._appends and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                self.metrics_keys = next(csv.reader(file), [])
        else:
            path.unlink(missing_ok=True)


def default_logger(command: str, config: Any) -> MetricsFile | bool:
    """Returns the logger of a command whose config names none: `fit` has one on this machine."""
    folder = os.path.expanduser(config.trainer.default_root_dir)  # as Lightning does elsewhere
    if command != "fit" or "://" in folder:
        return False
    return MetricsFile(folder, appends=resumes(folder, config.get("ckpt_path")))


def resumes(folder: str | Path, ckpt_path: str | None) -> bool:
    """Whether a fit resumes from a checkpoint: a named one, or that of a requeued job of Slurm."""
    requeued = SLURMEnvironment.detect() and any(Path(folder).glob("hpc_ckpt_*.ckpt"))
    return ckpt_path is not None or requeued


def trial_folder(folder: str | None) -> str | None:
    """Returns the folder of a run: for a trial that a W&B agent runs, one below named by its id."""
    # An agent sets one of the two, depending on how it runs trials.
    by_agent = {"WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"} & os.environ.keys()
    trial = os.environ.get("WANDB_RUN_ID")
    if not by_agent or trial is None:
        return folder
    return os.path.join(folder or "", trial)


@contextlib.contextmanager
def alone_in(trainer: pl.Trainer, ckpt_path: str | None) -> Iterator[None]:
    """Refuses a second run in a folder while the first trains, and keeps what one of before left.

    Loggers may have other folders, but all runs in the trainer's root folder write the same report
    and checkpoints.
    """
    folder = Path(trainer.default_root_dir)
    if not trainer.is_global_zero or "://" in str(folder):
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / ".fit", wait=False))
        except Timeout as error:
            raise UserError(
                f"expected a folder of its own for this run, got {folder}, where another one "
                "trains: choose another --trainer.default_root_dir or wait"
            ) from error
        stack.callback((folder / ".fit.lock").unlink, missing_ok=True)
        if not resumes(folder, ckpt_path):
            set_aside(folder)
        yield


def set_aside(folder: Path) -> None:
    """Moves what an earlier run left into `earlier_N` of its folder, and says so.

    A config alone is of a run that did not begin: it is replaced.
    """
    left = [name for name in WRITTEN if (folder / name).exists()]
    if not left or left == ["config.yaml"]:
        return
    # Checkpoints of two runs in one folder would replace each other.
    number = 0
    while (folder / f"earlier_{number}").exists():
        number += 1
    kept = folder / f"earlier_{number}"
    kept.mkdir()
    for name in left:
        (folder / name).rename(kept / name)
    advice = "--ckpt-path and its checkpoint would resume it"
    log.warning("%s had another run, which is in %s now; %s", folder, kept, advice)
