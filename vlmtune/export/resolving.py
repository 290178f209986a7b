"""From the name of a model to the model.

In: what a person types. Out: a model, zero-shot if it has no adapter. Never: a guess.
"""

from pathlib import Path

import yaml

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.zero_shot import ZeroShot
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.open_clip import OpenClip
from vlmtune.config import Spec, instantiate
from vlmtune.errors import UserError
from vlmtune.export.files import CONFIG, one_line
from vlmtune.export.loading import is_hub_id, load, read_checkpoint
from vlmtune.export.model import Model


def resolve(name: str, pretrained: str | None = None) -> Model:
    """Loads the model with a given name.

    Args:
        name: An export folder, a `.ckpt` of a run, a folder of open_clip, the YAML of a backbone or
            one with `backbone` and `adapter`, an open_clip name ("ViT-B-32", "hf-hub:org/repo"), or
            the hub id of an export. A model without an adapter is zero-shot.
        pretrained: Weights for an open_clip name.

    Raises:
        UserError: There is no such model, or the model has its own weights besides `pretrained`.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        model, weights = Model(*_untrained(path)), True
    elif path.is_file():
        model, weights = read_checkpoint(path), True
    elif (path / CONFIG).is_file() or is_hub_id(name, pretrained):
        model, weights = load(name), True
    else:
        model, weights = Model(*_attached(OpenClip(name, pretrained), ZeroShot())), False
    if pretrained is not None and weights:
        raise UserError(
            f"expected no pretrained for {name}, which has its own weights, got {pretrained!r}: "
            "leave it out"
        )
    return model


def _untrained(path: Path) -> tuple[Backbone, Adapter]:
    """The backbone and adapter of a YAML."""
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
        raise UserError(f"expected a YAML in {path}, got {one_line(error)}: correct it") from error
    if not isinstance(spec, dict) or not spec.keys() & {"class_path", "backbone"}:
        raise UserError(
            f"expected class_path and init_args in {path}, or backbone and adapter: correct it"
        )
    return spec


def _attached(backbone: Backbone, adapter: Adapter) -> tuple[Backbone, Adapter]:
    adapter.attach(backbone)
    return backbone, adapter
