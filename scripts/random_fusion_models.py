"""Writes a small random BLIP with both heads, to train fusion encoders without published weights.

In: a folder. Out: FOLDER/random-blip, as transformers saves it.
Never: trained weights.

Run `python -m scripts.random_fusion_models FOLDER`.
"""

import argparse
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from scripts.random_image_models import SIDE, SIZE, SPECIAL, VOCABULARY

WIDTH = 96
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def write_blip(folder: Path, seed: int = 0) -> Path:
    """Writes BLIP with three blocks a tower, patches of 8 x 8 and the shipped CLIP's words."""
    words = [*SPECIAL, *VOCABULARY.read_text(encoding="utf-8").split()]
    ids = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    config = transformers.BlipConfig(
        text_config={
            **SHAPE,
            **special,
            "vocab_size": len(ids),
            "max_position_embeddings": 40,
            "encoder_hidden_size": WIDTH,
            "attention_probs_dropout_prob": 0.0,
            "hidden_dropout_prob": 0.0,
        },
        # The default range, 1e-10, would leave every image the same.
        vision_config={**SHAPE, "image_size": SIDE, "patch_size": 8, "initializer_range": 0.02},
        image_text_hidden_size=64,
    )
    torch.manual_seed(seed)
    transformers.BlipForImageTextRetrieval(config).save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(folder)
    transformers.BlipImageProcessor(size=SIZE).save_pretrained(folder)
    return folder


def main() -> None:
    """Writes the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    print(f"wrote {write_blip(folder / 'random-blip')}")


if __name__ == "__main__":
    main()
