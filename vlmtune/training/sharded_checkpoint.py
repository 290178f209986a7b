"""Writes a checkpoint as a folder: each rank its own parts of tensors, the first rank the rest.

In: a checkpoint with DTensors, on all ranks. Out: the folder, whole or not at all.
Never: a whole tensor on one rank. `model.sharded_checkpoint` reads the folder.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from vlmtune.errors import UserError
from vlmtune.model.loading import REST
from vlmtune.model.sharded_checkpoint import PARTS, PATTERN, checksums, named_tensors
from vlmtune.storage.files import write_atomically


def write_folder(
    checkpoint: dict[str, Any], path: Path, save: Callable[[dict[str, Any], Path], None]
) -> None:
    """Writes a checkpoint; all ranks call it, with DTensors of the same names.

    The rest is written last, by `save`, and the folder then gets its name, on a file system that
    all ranks share. What was there is replaced.
    """
    parts = named_tensors(checkpoint, lambda value: isinstance(value, DTensor))
    is_first = dist.get_rank() == 0
    with contextlib.ExitStack() as stack:
        where = [""]
        if is_first:
            where[0] = str(stack.enter_context(write_atomically(path)))
        dist.broadcast_object_list(where)
        folder = Path(where[0])
        sums = _write_parts(parts, folder)
        if is_first:
            present = {file.name for file in folder.glob(PATTERN)}
            if missing := sums.keys() - present:
                raise UserError(
                    f"expected the parts of all ranks in {path}, got no {min(missing)}: write "
                    "checkpoints to a file system that all ranks share"
                )
            rest = tree_map_only(DTensor, _hollow, checkpoint)
            save({**rest, PARTS: sums}, folder / REST)


def _write_parts(parts: dict[str, Tensor], folder: Path) -> dict[str, str]:
    """Returns the checksums of the files of all ranks."""
    # Safetensors: the format of torch's own has a pickle that runs code when it is read.
    writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(parts, storage_writer=writer)
    except CheckpointException as error:  # a BaseException
        first, _ = next(iter(error.failures.values()))
        raise first from error
    mine = folder.glob(f"shard-{dist.get_rank() + 1:05d}-{PATTERN}")
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, checksums(mine))
    sums = {}
    for of_rank in by_rank:
        sums |= of_rank
    return sums


def _hollow(part: DTensor) -> Tensor:
    """The whole shape and type, without values."""
    return torch.empty(part.shape, dtype=part.dtype, device="meta")
