"""Which backbone loads a model of Hugging Face, by the `model_type` of its config.

In: the classes of all backbones. Out: the path of a class for each model type.
"""

from vlmtune.backbones.advice import backbone_classes


def supported_types() -> dict[str, str]:
    """Class path of the backbone for each model type, in alphabetical order.

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
