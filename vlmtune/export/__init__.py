"""What leaves a training run: a folder of a few MB that loads in three lines.

An export is a folder (or a Hugging Face hub repository) with

    adapter.safetensors   what training changed: the adapter, and unfrozen backbone weights
    adapter_config.json   how to make backbone and adapter again, and where the weights come from
    README.md             the model card

Frozen weights are never in it, nothing is ever unpickled, and loading is strict both ways.
"""

from vlmtune.export.files import FILES, save_export
from vlmtune.export.loading import check_checkpoint, load, read_checkpoint
from vlmtune.export.resolving import resolve

__all__ = ["FILES", "check_checkpoint", "load", "read_checkpoint", "resolve", "save_export"]
