"""Takes a trained model, gives a folder of a few MB; takes such a folder, gives the model.

An export is a folder (or a Hugging Face hub repository) with

    adapter.safetensors   trained weights: the adapter, and unfrozen backbone weights
    adapter_config.json   how to rebuild backbone and adapter, and the weights' provenance
    README.md             the model card

It never holds frozen weights or a pickle, and loading is strict both ways.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
