"""The files of an export: how they are written and how they are read."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file

from vlmtune.adapters.base import Adapter, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.export.model_card import model_card
from vlmtune.report.result import Result

VERSION = 1
WEIGHTS, CONFIG, CARD = "adapter.safetensors", "adapter_config.json", "README.md"
FILES = (WEIGHTS, CONFIG, CARD)
SIZES = ("embed_dim", "image_width", "text_width", "image_tokens", "logit_scale")


def save_export(
    folder: Path,
    backbone: Backbone,
    adapter: Adapter,
    *,
    provenance: Mapping[str, Any],
    overwrite: bool = False,
    alpha: float = 1.0,
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
        alpha: How far the weights are from the pre-trained model (0) to the trained one (1), where
            they were interpolated (see `WiseFT`); it is recorded.

    Raises:
        UserError: `folder` holds something else, or an export without `overwrite`, or cannot be
            written.
    """
    folder = Path(folder)
    check_target(folder, overwrite)
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
        "alpha": alpha,
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


def check_target(folder: Path, overwrite: bool) -> None:
    """Raises a `UserError` where an export may not be written to `folder`."""
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


def read_config(path: Path) -> dict[str, Any]:
    """Reads `adapter_config.json`.

    Raises:
        UserError: It cannot be read, is incomplete or of another version.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        version = config["version"]
        complete = {"fingerprint", "class_path", "init_args"} <= config["backbone"].keys()
        complete &= {"class_path", "init_args"} <= config["adapter"].keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"expected the configuration of an export in {path}, got {one_line(error)}: "
            "export again"
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


def one_line(error: BaseException) -> str:
    """What went wrong inside a library, for the middle of a line.

    Example:
        >>> one_line(ValueError("not   a number"))
        'ValueError: not a number'
    """
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
