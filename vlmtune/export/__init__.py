"""Writes a trained model for others to load: a folder of a few MB, merged weights, or ONNX.

An export is a folder (or a Hugging Face hub repository) with

    adapter.safetensors   trained weights: the adapter, and unfrozen backbone weights
    adapter_config.json   how to rebuild backbone and adapter, and the weights' provenance
    README.md             the model card

In: a backbone and its trained adapter. Out: the folder.
Never: frozen weights or a pickle; `vlmtune.model` reads the folder back.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
