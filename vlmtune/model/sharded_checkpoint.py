"""Reads a checkpoint that is a folder: what each rank held, and the rest in one file.

In: the rest, where tensors that lie in the parts are on the meta device. Out: the same checkpoint
with their values. Never: a process group, anything unpickled. `training.sharded_checkpoint` writes
the folder.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, HuggingFaceStorageReader
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_with_path

from vlmtune.backbones.weight_checks import check_written
from vlmtune.storage.files import sha256_of

PARTS = "parts"  # in the rest: the checksum of each file of a rank
PATTERN = "*.safetensors"  # of the parts


def named_tensors(content: Any, chosen: Callable[[Tensor], bool]) -> dict[str, Tensor]:
    """Returns the chosen tensors by the name that they have in the parts."""
    tensors = {}
    for path, value in tree_flatten_with_path(content)[0]:
        if isinstance(value, Tensor) and chosen(value):
            tensors[keystr(path)] = value
    return tensors


def checksums(files: Iterable[Path]) -> dict[str, str]:
    """Returns the checksum of each file by its name."""
    return {file.name: sha256_of(file) for file in files}


def filled(
    rest: dict[str, Any],
    folder: Path,
    make: Callable[[Tensor], Tensor],
    checked: slice = slice(None),
) -> dict[str, Any]:
    """Reads the parts in a folder into the rest.

    `make` makes a tensor without values from one on the meta device; of a DTensor the part of this
    rank is read. The `checked` files are compared with their checksums; ranks may share this work.
    """
    sums = rest.pop(PARTS, {})
    files = sorted(folder.glob(PATTERN))
    # A missing part, or one of another checkpoint, would leave weights random or mixed.
    names = {file.name for file in files}
    wrong = sorted(sums.keys() ^ names)
    for name, value in checksums(files[checked]).items():
        if sums.get(name) != value:
            wrong.append(name)
    check_written(folder, next(iter(wrong), None))
    hollow = named_tensors(rest, lambda value: value.is_meta)
    tensors = {name: make(value) for name, value in hollow.items()}
    # The steps of `dcp.load`, which would ask all ranks for their plans: here each reads alone.
    reader = HuggingFaceStorageReader(str(folder))
    planner = DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(tensors, metadata)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    plan = planner.create_local_plan()
    reader.read_data(plan, planner)
    return tree_map_with_path(lambda path, value: tensors.get(keystr(path), value), rest)
