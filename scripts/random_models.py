"""Writes small random models: a vision transformer of timm and ALIGN to probe, BLIP to train.

In: a folder, and names of models. Out: FOLDER/random-vit and others, as their libraries save them.
Never: trained weights: their numbers say what the architecture alone keeps of an image.

Run `python -m scripts.random_models FOLDER random-vit random-align random-blip`.
"""

import argparse
from collections.abc import Iterable
from functools import partial
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


def write_align(folder: Path, words: Iterable[str]) -> Path:
    """Writes ALIGN with five convolutional blocks, and BERT with these words."""
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


def write_blip(
    folder: Path,
    words: Iterable[str],
    width: int = 96,
    layers: tuple[int, int] = (3, 3),
    sides: tuple[int, int] = (SIDE, 8),
) -> Path:
    """Writes BLIP with both heads.

    Args:
        folder: Where.
        words: Its vocabulary.
        width: Of both towers, whose attention has four heads.
        layers: Of the image tower, and of the text tower.
        sides: Pixels of a side of an image, and of a patch.
    """
    shape = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 4}
    side, patch = sides
    text = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    text |= {"vocab_size": write_tokenizer(folder, words), "max_position_embeddings": 40}
    text |= {"encoder_hidden_size": width, "num_hidden_layers": layers[1]}
    # The default range, 1e-10, would leave every image the same.
    image = {"image_size": side, "patch_size": patch, "initializer_range": 0.02}
    image |= {"num_hidden_layers": layers[0]}
    towers: dict[str, Any] = {"text_config": shape | text, "vision_config": shape | image}
    config = transformers.BlipConfig(**towers, image_text_hidden_size=64)
    torch.manual_seed(0)
    transformers.BlipForImageTextRetrieval(config).save_pretrained(folder)
    transformers.BlipImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


def main() -> None:
    """Writes the models that the command line names."""
    words = VOCABULARY.read_text(encoding="utf-8").split()
    writers = {
        "random-vit": write_vit,
        "random-align": partial(write_align, words=words),
        "random-blip": partial(write_blip, words=words),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+", choices=writers)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        print(f"wrote {writers[name](options.folder / name)}")


if __name__ == "__main__":
    main()
