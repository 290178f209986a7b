"""Takes a trained model, gives a folder of a few MB; takes such a folder, gives the model.

An export is a folder (or a Hugging Face hub repository) with

    adapter.safetensors   trained weights: the adapter, and unfrozen backbone weights
    adapter_config.json   how to rebuild backbone and adapter, and the weights' provenance
    README.md             the model card

It never holds frozen weights or a pickle, and loading is strict both ways.
"""

from vlmtune.export.files import FILES, save_export
from vlmtune.export.loading import check_checkpoint, read_checkpoint
from vlmtune.export.resolving import load, resolve

__all__ = ["FILES", "check_checkpoint", "load", "read_checkpoint", "resolve", "save_export"]
