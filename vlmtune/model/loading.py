"""From an export or a checkpoint to a model.

In: a folder, the id of a hub repository, or a `.ckpt`. Out: the model. Never: anything unpickled.
"""

import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import Field, InstanceOf
from safetensors.torch import load_file
from torch import Tensor
from typing_extensions import TypedDict

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.trained_state import load_trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.weight_checks import check_finite, check_written
from vlmtune.config import Spec, find_path, instantiate
from vlmtune.errors import UserError, one_line
from vlmtune.model.hub import NETWORK, is_hub_id
from vlmtune.model.layout import CONFIG, WEIGHTS, PluginSpec, read_config
from vlmtune.model.model import Model
from vlmtune.storage.files import check_shape, reading, regular, sha256_of

TensorValue = Annotated[Tensor, InstanceOf]
RunId = Annotated[str, Field(pattern=r"^[^:;,#?/\\'\s]+$")]  # W&B names a folder by it

REST = "rest.ckpt"  # in the folder of a sharded checkpoint: all but the parts of ranks
LIVE = "live_state_dict"  # in a checkpoint of averaged weights: those to train on from


class CheckpointSpecs(TypedDict):
    """What a checkpoint says of its model."""

    version: Literal[1]
    backbone: PluginSpec
    fingerprint: str
    adapter: PluginSpec


class CheckpointContent(TypedDict):
    """The part of a checkpoint that vlmtune reads."""

    vlmtune: CheckpointSpecs
    state_dict: dict[str, TensorValue]
    global_step: NotRequired[int]
    live_state_dict: NotRequired[dict[str, TensorValue]]
    wandb_runs: NotRequired[list[RunId]]
    provenance: NotRequired[Any]  # a file may hold anything here
    parts: NotRequired[dict[str, str]]


def load_export(
    source: str | Path,
    *,
    backbone: Backbone | None = None,
    revision: str | None = None,
    pretrained: str | None = None,
    packages: Sequence[str] = (),
) -> Model:
    """Loads an export onto the CPU.

    Args:
        source: A folder written by `save_export`, or the id of a hub repository with its files.
        backbone: The backbone, never adapted before; None builds it as the export describes, at the
            revision of the base model that the export records.
        revision: Commit, branch or tag of a hub repository; None for its main branch.
        pretrained: The file with the backbone's weights, or the folder of the base model, if it is
            not where the export says.
        packages: Packages besides vlmtune that the export may import classes from.

    Raises:
        UserError: A file is missing or damaged, names a class of another package, or does not fit
            the backbone.
    """
    folder = _export_folder(str(source), revision)
    config = read_config(folder / CONFIG)
    check_packages(config["backbone"], config["adapter"], packages=packages, source=str(source))
    with reading(folder / WEIGHTS, "the weights of an export", "export again"):
        state = load_file(folder / WEIGHTS)
        # Exports that an older version wrote name no checksum.
        checksum = sha256_of(folder / WEIGHTS)
        damaged_file = None
        if config.get("weights_sha256", checksum) != checksum:
            damaged_file = WEIGHTS
    check_written(folder, damaged_file)
    _move(config["backbone"], pretrained)
    # Checkpoints keep the fingerprint beside the backbone, exports inside it.
    specs = {**config, "fingerprint": config["backbone"].pop("fingerprint")}
    check_finite(state, f"{folder / WEIGHTS} is damaged; export again")
    backbone, adapter = _rebuild(specs, state, str(source), backbone)
    model = Model(backbone, adapter, provenance=config.get("provenance"))
    # An export that is made of this one has the same.
    model.provenance |= {key: config[key] for key in ("alpha", "licence") if key in config}
    return model


def is_checkpoint(path: str | Path) -> bool:
    """Whether there is a file, or the folder of a sharded checkpoint."""
    return Path(path).is_file() or (Path(path) / REST).is_file()


def on_cpu(hollow: Tensor) -> Tensor:
    """Makes a tensor on the CPU of the shape of one on the meta device."""
    return torch.empty_like(hollow, device="cpu")


def read_checkpoint(
    path: str | Path, packages: Sequence[str] = (), pretrained: str | None = None
) -> Model:
    """Builds the model of a training checkpoint, with its weights.

    It may import classes from vlmtune and from `packages`; any other is a `UserError`.
    `pretrained` is that of `load_export`.
    """
    checkpoint = check_checkpoint(path, on_cpu)
    specs = checkpoint["vlmtune"]
    _move(specs["backbone"], pretrained)
    check_packages(specs["backbone"], specs["adapter"], packages=packages, source=str(path))
    backbone, adapter = _rebuild(specs, checkpoint["state_dict"], str(path))
    return Model(backbone, adapter, provenance=checkpoint.get("provenance"))


def check_checkpoint(
    path: str | Path, make: Callable[[Tensor], Tensor] | None = None, checked: slice = slice(None)
) -> dict[str, Any]:
    """Reads and checks a training checkpoint without building the model.

    Of a folder that FSDP2 wrote, tensors in parts are read only where `make` is given (see
    `sharded_checkpoint.filled`); without it they are on the meta device.
    """
    fix = "name a whole file, such as checkpoints/last.ckpt in the folder of a run"
    with reading(path, "a vlmtune checkpoint", fix):
        file = regular(path)
        if (file / REST).is_file():
            file = regular(file / REST)
        check_archive(file)
        try:
            # Tensors and plain values only: a pickle could run code.
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            # torch would advise to load it with the code that it holds.
            raise ValueError(one_line(error)) from error
    fix = (
        "use another checkpoint or the version of vlmtune that wrote it, or measure weights of "
        "open_clip with --model FILE --architecture NAME"
    )
    check_shape(checkpoint, CheckpointContent, path, "a vlmtune checkpoint", fix)
    in_parts = any(value.is_meta for value in checkpoint["state_dict"].values())
    if in_parts:
        if make is None:
            return checkpoint
        from vlmtune.model.sharded_checkpoint import filled  # few checkpoints are folders

        with reading(path, "a vlmtune checkpoint", fix):
            checkpoint = filled(checkpoint, Path(path), make, checked)
    for key in ("state_dict", LIVE):
        check_finite(checkpoint.get(key, {}), f"{path} is damaged; use another checkpoint")
    return checkpoint


def check_archive(path: Path) -> None:
    """Compares the checksum of each part of a checkpoint with its bytes; torch does not."""
    if not zipfile.is_zipfile(path):
        return  # torch says what it is
    with zipfile.ZipFile(path) as archive:
        check_written(path, archive.testzip())


def _export_folder(source: str, revision: str | None) -> Path:
    """The local folder of an export; downloads it if `source` is a hub id."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    from huggingface_hub import hf_hub_download  # a local folder does not need it

    from vlmtune.backbones.hub_connection import hub_or_cache

    with reading(source, "an export on the Hugging Face hub", NETWORK), hub_or_cache(source):
        config = Path(hf_hub_download(source, CONFIG, revision=revision))
        # The snapshot's name is its commit: weights of the same, though a branch may move on.
        hf_hub_download(source, WEIGHTS, revision=config.parent.name)
        return config.parent


def check_packages(*specs: Any, packages: Sequence[str], source: str) -> None:
    """Refuses to import what a file names, except from vlmtune and the packages of the user."""
    missing = [package for package in foreign_packages(*specs) if package not in packages]
    if missing:
        paths = dict.fromkeys(_class_paths(list(specs)))
        foreign = [path for path in paths if path.partition(".")[0] in missing]
        raise UserError(
            f"expected classes of vlmtune in {source}, got {' and '.join(foreign)}: if you trust "
            f"them, add packages={missing}, or --packages {' '.join(missing)} on the command line"
        )


def foreign_packages(*specs: Any) -> list[str]:
    """The packages besides vlmtune that whoever loads these specs has to name."""
    packages = {path.partition(".")[0] for path in _class_paths(list(specs))}
    return sorted(packages - {"vlmtune"})


def loading_call(source: str, model: Model) -> str:
    """The call of Python that loads an export of the model from `source`."""
    packages = foreign_packages(model.backbone.spec(), model.adapter.spec())
    more = f", packages={packages}" if packages else ""
    return f"vlmtune.load({source!r}{more})"


def _class_paths(specs: Any) -> Iterator[str]:
    if isinstance(specs, dict) and "class_path" in specs:
        yield str(specs["class_path"])
    # An argument may be a plug-in itself, or a list of them.
    inner = specs.values() if isinstance(specs, dict) else specs
    if isinstance(specs, dict | list):
        for one in inner:
            yield from _class_paths(one)


def _move(spec: Spec, pretrained: str | None) -> None:
    """Names where the backbone of a model lies now: a weights file, or a folder or hub id."""
    if pretrained is None:
        return
    arguments = spec["init_args"]
    # A weights file belongs to an architecture; a folder, or a hub id, is a whole model.
    has_address = pretrained.startswith(("hf-hub:", "local-dir:"))
    is_model = Path(pretrained).is_dir() or has_address or "pretrained" not in arguments
    arguments["model" if is_model else "pretrained"] = pretrained


def _base_model(spec: Spec, source: str) -> Backbone:
    """The backbone of a trained model; if it is not here, the error says how to name it."""
    try:
        return instantiate(spec, Backbone)
    except UserError as error:
        line = str(error)
        base = str(spec["init_args"].get("model", ""))
        if base in line and find_path(base) is None:
            line += "; if it is a folder that has moved, name it with --pretrained FOLDER"
            if "/" in base and not is_hub_id(base, None):  # a hub id may be a folder, too
                line = (
                    f"expected the base model {base} of {source}, it is not here: name it with "
                    "--pretrained FOLDER"
                )
        raise UserError(line) from error


def _rebuild(
    specs: Mapping[str, Any],
    state: Mapping[str, Tensor],
    source: str,
    backbone: Backbone | None = None,
) -> tuple[Backbone, Adapter]:
    backbone = backbone or _base_model(specs["backbone"], source)
    if backbone.fingerprint != specs["fingerprint"]:
        raise UserError(
            f"expected the backbone {specs['backbone']['init_args']} of {source} "
            f"(fingerprint {specs['fingerprint'][:12]}), got other weights or preprocessing "
            f"({backbone.fingerprint[:12]}): use the weights it was trained on"
        )
    # Random initial weights are replaced at once.
    with (
        reading(source, f"arguments of {specs['adapter']['class_path']}", "export again"),
        torch.random.fork_rng(devices=[]),
    ):
        adapter = instantiate(specs["adapter"], Adapter)
        adapter.attach(backbone)
    # Strict both ways: neither a missing nor a surplus weight passes.
    load_trained_state(backbone, adapter, state, source)
    return backbone.eval(), adapter.eval()
