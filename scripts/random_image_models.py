"""Writes two small random models: a vision transformer of timm and ALIGN, for vlmtune probe.

In: a folder. Out: FOLDER/random-vit and FOLDER/random-align, as their libraries save them.
Never: trained weights: their numbers say what the architecture alone keeps of an image.

Run `python -m scripts.random_image_models FOLDER`.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from timm.models import save_for_hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from vlmtune.config import ROOT

SIDE = 64
SIZE = {"height": SIDE, "width": SIDE}
VOCABULARY = ROOT / "checkpoints/scenes-clip/vocabulary.txt"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_vit(folder: Path) -> Path:
    """Writes a plain vision transformer with the shape of the shipped CLIP's image tower."""
    options: dict[str, Any] = {
        "img_size": SIDE,
        "patch_size": 8,
        "embed_dim": 128,
        "depth": 4,
        "num_heads": 4,
        "num_classes": 0,
    }
    torch.manual_seed(0)
    network: Any = timm.create_model("vit_tiny_patch16_224", **options)
    network.pretrained_cfg |= {"input_size": (3, SIDE, SIDE), "crop_pct": 1.0}
    save_for_hf(network, str(folder), model_args=options, safe_serialization=True)
    return folder


def write_tokenizer(folder: Path, words: Iterable[str]) -> int:
    """Writes a tokenizer of whole words, with [CLS] and [SEP] around a text; returns its size."""
    ids = {word: i for i, word in enumerate(dict.fromkeys([*SPECIAL, *words]))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(name, ids[name]) for name in SPECIAL[2:]]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(folder)
    return len(ids)


def write_align(folder: Path) -> Path:
    """Writes ALIGN with five convolutional blocks, and BERT with the words of the shipped CLIP."""
    words = VOCABULARY.read_text(encoding="utf-8").split()
    size = write_tokenizer(folder, words)
    config = transformers.AlignConfig(
        text_config={
            "vocab_size": size,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 24,
        },
        vision_config={
            "image_size": SIDE,
            "width_coefficient": 1.0,
            "depth_coefficient": 1.0,
            "kernel_sizes": [3, 3, 3],
            "in_channels": [32, 32, 64],
            "out_channels": [32, 64, 128],
            "strides": [1, 2, 2],
            "num_block_repeats": [1, 2, 2],
            "expand_ratios": [1, 2, 2],
            "hidden_dim": 128,
            "num_hidden_layers": 5,
            # The default of 0.02 makes maps so small that images hardly differ.
            "initializer_range": 0.1,
        },
        projection_dim=128,
    )
    torch.manual_seed(0)
    transformers.AlignModel(config).save_pretrained(folder)
    transformers.EfficientNetImageProcessor(size=SIZE, crop_size=SIZE).save_pretrained(folder)
    return folder


def write_all(description: str | None, writers: Mapping[str, Callable[[Path], Path]]) -> None:
    """Writes models by name into the folder that the command line names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in writers.items():
        print(f"wrote {write(folder / name)}")


def main() -> None:
    """Writes both models."""
    write_all(__doc__, {"random-vit": write_vit, "random-align": write_align})


if __name__ == "__main__":
    main()
