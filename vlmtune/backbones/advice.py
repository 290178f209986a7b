"""Which backbones there are, and which of them have an ability that an adapter needs.

In: the plug-ins in configs/plugins/backbones. Out: their classes, and the advice of an error.
"""

from pkgutil import resolve_name

import yaml

from vlmtune.backbones.base import Ability, Backbone
from vlmtune.config import find_path, stems


def backbone_classes() -> list[type[Backbone]]:
    """Returns the class of each YAML, in the order of the files' names.

    YAMLs in the working directory count too, and replace vlmtune's of the same name.

    Example:
        >>> [kind.__name__ for kind in backbone_classes()][:3]
        ['Align', 'Blip', 'Blip2']
    """
    classes = []
    for stem in stems("backbones"):
        path = find_path(f"configs/plugins/backbones/{stem}.yaml")
        assert path is not None, "a stem is the name of a YAML"
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        classes.append(resolve_name(spec["class_path"]))
    return classes


def backbones_with(ability: Ability, one_shape: bool = False) -> str:
    """Names the backbones that have an ability, as errors advise them.

    Classes with the ability whatever their checkpoint come first. All classes are imported, which
    takes seconds, so call it only where an error is written. `one_shape` leaves out backbones whose
    images keep their shape.

    Example:
        >>> backbones_with("joined")
        'Flava with its matching head'
        >>> backbones_with("embeddings")
        'Align, Blip, Flava, HFCLIP, ... or BridgeTower with its contrastive heads'
    """
    always = []
    sometimes = []
    for kind in backbone_classes():
        # A string says which checkpoints of a class can.
        able = getattr(kind.abilities, ability)
        if not able or (one_shape and kind.images_differ):
            continue
        if isinstance(able, str):
            sometimes.append(f"{kind.__name__} {able}")
        else:
            always.append(kind.__name__)
    *first, last = [*always, *sometimes]
    return f"{', '.join(first)} or {last}" if first else last


def supported_types() -> dict[str, str]:
    """Class path of the backbone for each model type of transformers, in alphabetical order.

    Example:
        >>> supported_types()["clip"]
        'vlmtune.backbones.hf.hf_clip.HFCLIP'
    """
    paths = {}
    for backbone in backbone_classes():
        network = getattr(backbone, "kind", None)
        config = getattr(network, "config_class", None)
        if config is not None:
            paths[config.model_type] = f"{backbone.__module__}.{backbone.__name__}"
    return dict(sorted(paths.items()))
