"""The folder of a training run: who may write to it, and checkpoints that are whole.

In: a trainer, and checkpoints. Out: the files. Never: two runs that write the same files.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from filelock import FileLock, Timeout
from pytorch_lightning.plugins.io import TorchCheckpointIO
from typing_extensions import override

from vlmtune.errors import UserError
from vlmtune.export import check_checkpoint
from vlmtune.storage.files import write_atomically


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
        with write_atomically(Path(path)) as temporary, temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())

    @override
    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Checks a local file before it is loaded: torch compares no checksum."""
        if "://" not in str(path):
            check_checkpoint(path)
        return super().load_checkpoint(path, *arguments, **options)


@contextlib.contextmanager
def alone_in(trainer: pl.Trainer) -> Iterator[None]:
    """Refuses a second run in a folder while the first trains; its loggers may give each its own.

    Raises:
        UserError: Another run trains there.
    """
    folder = Path(trainer.default_root_dir)
    if trainer.loggers or not trainer.is_global_zero or "://" in str(folder):
        yield
        return
    lock = FileLock(folder / ".fit.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(
            f"expected a folder of its own for this run, got {folder}, where another one trains: "
            "choose another --trainer.default_root_dir or wait"
        ) from error
    except OSError as error:
        raise UserError(
            f"expected a folder that can be written, got {folder} ({error.strerror}): choose "
            "another --trainer.default_root_dir"
        ) from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
