"""Writes a small random BLIP with both heads, to train fusion encoders without published weights.

In: a folder. Out: FOLDER/random-blip, as transformers saves it.
Never: trained weights.

Run `python -m scripts.random_fusion_models FOLDER`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers

from scripts.random_image_models import SIDE, VOCABULARY, write_all, write_tokenizer


def write_blip(
    folder: Path,
    words: Iterable[str],
    width: int = 96,
    layers: tuple[int, int] = (3, 3),
    sides: tuple[int, int] = (SIDE, 8),
) -> Path:
    """Writes a random BLIP with four heads.

    Args:
        folder: Where.
        words: Its vocabulary.
        width: Of both towers.
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


def write_small_blip(folder: Path) -> Path:
    """Writes BLIP with three blocks a tower, patches of 8 x 8 and the shipped CLIP's words."""
    return write_blip(folder, VOCABULARY.read_text(encoding="utf-8").split())


def main() -> None:
    """Writes the model."""
    write_all(__doc__, {"random-blip": write_small_blip})


if __name__ == "__main__":
    main()
