"""Which backbone loads a model of Hugging Face, by the `model_type` of its config.

In: the plug-ins in configs/plugins/backbones. Out: a class for each model type.
Never: a list of its own; a backbone with a YAML there is known here.
"""

import importlib
from functools import cache
from pathlib import Path

import yaml

from vlmtune.config import ROOT

FOLDER = Path("configs/plugins/backbones")


def supported_types() -> dict[str, str]:
    """Class path of the backbone for each model type, in alphabetical order.

    Example:
        >>> supported_types()["clip"]
        'vlmtune.backbones.hf.hf_clip.HFCLIP'
    """
    files = {path.stem: path for root in (ROOT, Path()) for path in (root / FOLDER).glob("*.yaml")}
    return dict(sorted(pair for path in files.values() for pair in _types(path.resolve())))


@cache
def _types(path: Path) -> tuple[tuple[str, str], ...]:
    """The model type of a backbone's YAML, if it is one of Hugging Face."""
    class_path = yaml.safe_load(path.read_text(encoding="utf-8"))["class_path"]
    module, _, name = class_path.rpartition(".")
    kind = getattr(getattr(importlib.import_module(module), name), "kind", None)
    config = getattr(kind, "config_class", None)
    return () if config is None else ((config.model_type, class_path),)
