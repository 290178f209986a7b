"""What leaves a training run: a folder of a few MB that loads in three lines.

An export is a folder (or a Hugging Face hub repository) with

    adapter.safetensors   what training changed: the adapter, and unfrozen backbone weights
    adapter_config.json   how to make backbone and adapter again, and where the weights come from
    README.md             the model card

Frozen weights are never in it, nothing is ever unpickled, and loading is strict both ways.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vlmtune.adapters.base import Adapter, load_trained_state, trained_state
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.open_clip import OpenClip
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError
from vlmtune.model import Model
from vlmtune.model_card import model_card
from vlmtune.types import Result

VERSION = 1
WEIGHTS, CONFIG, CARD = "adapter.safetensors", "adapter_config.json", "README.md"
FILES = (WEIGHTS, CONFIG, CARD)
SIZES = ("embed_dim", "image_width", "text_width", "image_tokens", "logit_scale")
CHECKPOINT_KEYS = ("version", "backbone", "fingerprint", "adapter")


def save_export(
    folder: Path,
    backbone: Backbone,
    adapter: Adapter,
    *,
    provenance: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Writes an export, whole or not at all.

    Args:
        folder: Where to write. A folder that is not an export is never replaced.
        backbone: The backbone.
        adapter: The adapter, attached to it.
        provenance: Where the weights come from, as far as it is known: `config`, `data`, `seed`
            and `seconds` of the training, `versions` of libraries, `commit`, `date`, and
            `results`, the `Result`s of benchmarks, for the scores of the model card.
        overwrite: Replace an export that is already there.

    Raises:
        UserError: `folder` holds something else, or an export without `overwrite`, or cannot be
            written.
    """
    folder = Path(folder)
    _check_target(folder, overwrite)
    results = cast("Sequence[Result]", provenance.get("results", ()))
    state = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in trained_state(backbone, adapter).items()
    }
    config = {
        "format": "vlmtune-adapter",
        "version": VERSION,
        "backbone": {
            **backbone.spec(),
            "fingerprint": backbone.fingerprint,
            "sizes": {name: getattr(backbone, name) for name in SIZES},
        },
        "adapter": adapter.spec(),
        "trained_values": sum(value.numel() for value in state.values()),
        "provenance": {key: value for key, value in provenance.items() if key != "results"},
        "scores": [_scores(result) for result in results],
    }
    text = json.dumps(config, indent=2, ensure_ascii=False, default=str) + "\n"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            save_file(state, new / WEIGHTS)
            (new / CONFIG).write_text(text, encoding="utf-8")
            card = model_card(folder.name, json.loads(text), results)
            (new / CARD).write_text(card, encoding="utf-8")
            _replace(folder, new, Path(temporary) / "old")
    except OSError as error:
        raise UserError(
            f"expected to write {folder}, got {type(error).__name__} ({error.strerror}): "
            "choose a folder that can be written"
        ) from error


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
    folder = _export_folder(str(source))
    config = _read_config(folder / CONFIG)
    try:
        state = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"expected the weights {folder / WEIGHTS}, got {_line(error)}: export again"
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
            f"expected a checkpoint of vlmtune in {path}, got {_line(error)}: correct the path"
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


def resolve(name: str, pretrained: str | None = None) -> Model:
    """Finds the model a person names.

    Args:
        name: An export folder, a `.ckpt` of a run, a folder of open_clip, the YAML of a backbone or
            one with `backbone` and `adapter`, an open_clip name ("ViT-B-32", "hf-hub:org/repo"), or
            the hub id of an export. A model without an adapter is scored zero-shot.
        pretrained: Weights for an open_clip name.

    Raises:
        UserError: There is no such model, or `pretrained` is given for one that has its weights.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        model, weights = Model(*_untrained(path)), True
    elif path.is_file():
        model, weights = read_checkpoint(path), True
    elif (path / CONFIG).is_file() or _is_hub_id(name, pretrained):
        model, weights = load(name), True
    else:
        model, weights = Model(*_attached(OpenClip(name, pretrained), ZeroShot())), False
    if pretrained is not None and weights:
        raise UserError(
            f"expected no pretrained for {name}, which brings its weights, got {pretrained!r}: "
            "leave it out"
        )
    return model


def _is_hub_id(name: str, pretrained: str | None) -> bool:
    # open_clip's own names may have a slash, too, but those come with `pretrained`.
    parts = name.split("/")
    return (
        len(parts) == 2
        and all(parts)
        and not name.startswith((".", "~", "hf-hub:", "local-dir:"))
        and pretrained is None
        and not Path(name).exists()
    )


def _untrained(path: Path) -> tuple[Backbone, Adapter]:
    """A backbone, with an adapter or zero-shot, as a YAML describes it."""
    spec = _read_spec(path)
    if "backbone" not in spec:
        return _attached(instantiate(spec, Backbone), ZeroShot())
    parts = {
        key: _read_spec(path.parent / part) if isinstance(part, str) else part
        for key, part in spec.items()
    }
    adapter = instantiate(parts["adapter"], Adapter) if "adapter" in parts else ZeroShot()
    return _attached(instantiate(parts["backbone"], Backbone), adapter)


def _read_spec(path: Path) -> Spec:
    try:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"expected a YAML in {path}, got {_line(error)}: correct it") from error
    if not isinstance(spec, dict) or not spec.keys() & {"class_path", "backbone"}:
        raise UserError(
            f"expected class_path and init_args in {path}, or backbone and adapter: correct it"
        )
    return spec


def _attached(backbone: Backbone, adapter: Adapter) -> tuple[Backbone, Adapter]:
    adapter.attach(backbone)
    return backbone, adapter


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


def _check_target(folder: Path, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / CONFIG).is_file() or {p.name for p in folder.iterdir()} - set(FILES):
        raise UserError(
            f"expected a new folder or an export in {folder}, it holds something else: "
            "choose another folder"
        )
    if not overwrite:
        raise UserError(
            f"expected a new folder, {folder} holds an export: choose another or pass --overwrite"
        )


def _replace(folder: Path, new: Path, old: Path) -> None:
    """Puts `new` in the place of `folder`, which stays what it was where that fails."""
    if folder.exists():
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


def _export_folder(source: str) -> Path:
    """Returns the local folder of an export, downloaded from the hub where `source` is an id."""
    folder = Path(source)
    if folder.is_dir():
        missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        if missing:
            raise UserError(
                f"expected an export of vlmtune in {source}, it has no {missing[0]}: "
                "correct the path or export again"
            )
        return folder
    if not _is_hub_id(source, None):
        raise UserError(
            f"expected the folder of an export or a hub id org/name, got {source!r}: correct it"
        )
    from huggingface_hub import snapshot_download  # not needed for a folder

    try:
        folder = Path(snapshot_download(source, allow_patterns=list(FILES)))
    except Exception as error:  # network, permission, name: all mean that it cannot be had
        raise UserError(
            f"expected an export in a folder or on the Hugging Face hub, got {source!r} "
            f"({_line(error)}): check the name and the network"
        ) from error
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"expected an export of vlmtune in the hub repository {source}, it has no {CONFIG}: "
            f"for a model of open_clip write hf-hub:{source}"
        )
    return folder


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        version = config["version"]
        complete = {"fingerprint", "class_path", "init_args"} <= config["backbone"].keys()
        complete &= {"class_path", "init_args"} <= config["adapter"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"expected the configuration of an export in {path}, got {_line(error)}: export again"
        ) from error
    if version != VERSION or not complete:
        raise UserError(
            f"expected an export of format version {VERSION} in {path}, got "
            f"{f'version {version!r}' if version != VERSION else 'an incomplete one'}: "
            "use the version of vlmtune that wrote it, or export again"
        )
    return config


def _scores(result: Result) -> dict[str, Any]:
    """The numbers of a benchmark as JSON values; its gallery of examples stays in the report."""
    return {
        "benchmark": result.benchmark,
        "version": result.version,
        "primary": result.primary,
        "metrics": {name: vars(metric) for name, metric in result.metrics.items()},
        "citation": result.citation,
    }


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
