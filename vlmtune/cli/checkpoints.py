"""Checkpoints that are whole or not there, whenever a run is killed."""

import os
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint to a temporary name in its own folder, then renames it.

    Lightning's own writes into the system's temporary folder; where that is another file system,
    the file is then copied over the last checkpoint, and a run that is killed meanwhile leaves half
    of it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     WholeCheckpoints().save_checkpoint({"step": 1}, Path(folder) / "last.ckpt")
        ...     sorted(os.listdir(folder))
        ['last.ckpt']
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Saves `checkpoint` to `path`; an object store writes whole files by itself."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        whole = Path(path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        part = whole.with_name(f".{whole.name}.part")  # of a fixed name, so that none accumulate
        with part.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
