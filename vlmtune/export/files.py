"""The files of an export: writing them and reading the configuration.

In: a backbone and its trained adapter. Out: the folder. Never: another folder overwritten.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from safetensors.torch import save_file

from vlmtune.adapters.base import Adapter, trained_state
from vlmtune.backbones.base import Backbone
from vlmtune.errors import UserError
from vlmtune.export.model_card import model_card
from vlmtune.report.result import Result
from vlmtune.storage.files import read_json, write_atomically

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
    licence: str | None = None,
) -> None:
    """Writes an export atomically.

    Args:
        folder: Where to write. A folder that is not an export is never replaced.
        backbone: The backbone.
        adapter: The adapter, attached to it.
        provenance: Where the weights come from, as far as known: `config`, `data`, `seed` and
            `seconds` of the training, `versions` of libraries, `commit`, `date`, and `results`, the
            `Result`s of benchmarks for the model card.
        overwrite: Replace an existing export.
        alpha: The WiSE-FT coefficient, from 0 (pre-trained) to 1 (trained), recorded in the export.
        licence: The licence of the trained weights, as the hub names it ("apache-2.0").

    Raises:
        UserError: `folder` holds something else, or an export and `overwrite` is False.
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
        "licence": licence,
        "trained_values": sum(value.numel() for value in state.values()),
        "provenance": {key: value for key, value in provenance.items() if key != "results"},
        "scores": [_scores(result) for result in results],
    }
    text = json.dumps(config, indent=2, ensure_ascii=False, default=str) + "\n"
    with write_atomically(folder) as new:
        new.mkdir()
        save_file(state, new / WEIGHTS)
        (new / CONFIG).write_text(text, encoding="utf-8")
        shutil.copymode(new / CONFIG, new / WEIGHTS)  # safetensors gives its owner alone the right
        (new / CARD).write_text(model_card(folder.name, json.loads(text), results), "utf-8")


def check_target(folder: Path, overwrite: bool) -> None:
    """Raises `UserError` if an export must not be written to `folder`."""
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


def read_config(path: Path) -> dict[str, Any]:
    """Reads and checks `adapter_config.json`."""
    expected = "the configuration of an export"
    config = read_json(path, expected, "export again")
    try:
        version = config["version"]
        complete = {"fingerprint", "class_path", "init_args"} <= config["backbone"].keys()
        complete &= {"class_path", "init_args"} <= config["adapter"].keys()
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"expected {expected} in {path}, got {one_line(error)}: export again"
        ) from error
    if version != VERSION or not complete:
        raise UserError(
            f"expected an export of format version {VERSION} in {path}, got "
            f"{f'version {version!r}' if version != VERSION else 'an incomplete one'}: "
            "use the version of vlmtune that wrote it, or export again"
        )
    return config


def _scores(result: Result) -> dict[str, Any]:
    """The numbers of a benchmark as JSON values, without the gallery."""
    return {
        "benchmark": result.benchmark,
        "version": result.version,
        "primary": result.primary,
        "metrics": {name: vars(metric) for name, metric in result.metrics.items()},
        "citation": result.citation,
    }


def one_line(error: BaseException) -> str:
    """The error of a library as part of a line.

    Example:
        >>> one_line(ValueError("not   a number"))
        'ValueError: not a number'
    """
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
