"""From an export or a checkpoint to a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vlmtune.adapters.base import Adapter, load_trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.config import instantiate
from vlmtune.errors import UserError
from vlmtune.export.files import CONFIG, VERSION, WEIGHTS, one_line, read_config
from vlmtune.export.hub import export_folder
from vlmtune.export.model import Model

CHECKPOINT_KEYS = ("version", "backbone", "fingerprint", "adapter")


def load(
    source: str | Path, *, backbone: Backbone | None = None, device: torch.device | str = "cpu"
) -> Model:
    """Loads an export.

    Args:
        source: A folder `save_export` wrote, or the id of a hub repository with its files.
        backbone: The backbone, where it is at hand; else it is made as the export says. It must
            not have been adapted before.
        device: Where to compute.

    Raises:
        UserError: There is no such export, a file is damaged, the backbone has other weights than
            the one that was adapted, or the adapter's weights do not fit.
    """
    folder = export_folder(str(source))
    config = read_config(folder / CONFIG)
    try:
        state = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"expected the weights {folder / WEIGHTS}, got {one_line(error)}: export again"
        ) from error
    fingerprint = config["backbone"].pop("fingerprint")
    made = {**config, "fingerprint": fingerprint}
    parts = _rebuild(made, state, str(source), backbone, device)
    return Model(*parts, provenance=config.get("provenance"))


def read_checkpoint(path: str | Path) -> Model:
    """Makes the model of a training checkpoint, with its weights.

    Raises:
        UserError: The file is missing, truncated or not a checkpoint of vlmtune, or the backbone
            it was trained on cannot be had.
    """
    checkpoint = check_checkpoint(path)
    parts = _rebuild(checkpoint["vlmtune"], checkpoint["state_dict"], str(path))
    return Model(*parts, provenance=checkpoint.get("provenance"))


def check_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a training checkpoint without making anything of it.

    Raises:
        UserError: The file is missing, truncated or not a checkpoint of vlmtune.
    """
    try:
        checkpoint = torch.load(Path(path), map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and torch each have their own way to refuse a file
        raise UserError(
            f"expected a checkpoint of vlmtune in {path}, got {one_line(error)}: correct the path"
        ) from error
    made = checkpoint.get("vlmtune") if isinstance(checkpoint, dict) else None
    if not (isinstance(made, dict) and made.keys() >= set(CHECKPOINT_KEYS)):
        raise UserError(
            f"expected a checkpoint of vlmtune in {path}, got a foreign one: correct the path"
        )
    if made["version"] != VERSION:
        raise UserError(
            f"expected a checkpoint of version {VERSION} in {path}, got {made['version']}: "
            "use the version of vlmtune that wrote it"
        )
    return checkpoint


def _rebuild(
    made: Mapping[str, Any],
    state: Mapping[str, Tensor],
    source: str,
    backbone: Backbone | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Backbone, Adapter]:
    backbone = backbone or instantiate(made["backbone"], Backbone)
    if backbone.fingerprint != made["fingerprint"]:
        raise UserError(
            f"expected the backbone {made['backbone']['init_args']} that {source} was trained on "
            f"(fingerprint {made['fingerprint'][:12]}), got other weights or preprocessing "
            f"({backbone.fingerprint[:12]}): use the weights it was trained on"
        )
    adapter = instantiate(made["adapter"], Adapter)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn only to be replaced
        adapter.attach(backbone)
    load_trained_state(backbone, adapter, state, source)
    return backbone.to(device).eval(), adapter.to(device).eval()
