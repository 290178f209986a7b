"""What the libraries themselves say the scores of images and captions are."""

from pathlib import Path

import open_clip
import torch
from torch.nn.functional import normalize
from transformers import AutoTokenizer, CLIPModel, FlavaModel, SiglipModel

from vlmtune.backbones.word_tokenizer import WordTokenizer


def open_clip_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    ids = WordTokenizer((folder / "vocabulary.txt").read_text().split(), 12)(texts)
    return model.get_logits(pixels, ids)[0]


def clip_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = CLIPModel.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    return model(pixel_values=pixels, **inputs).logits_per_image


def siglip_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = SiglipModel.from_pretrained(folder).eval()
    ids = AutoTokenizer.from_pretrained(folder)(
        texts, padding="max_length", max_length=12, return_tensors="pt"
    )["input_ids"]
    return model(pixel_values=pixels, input_ids=ids).logits_per_image


def flava_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = FlavaModel.from_pretrained(folder).eval()
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    image = model.get_image_features(pixels).pooler_output[:, 0]
    text = model.get_text_features(
        inputs["input_ids"], attention_mask=inputs["attention_mask"]
    ).pooler_output[:, 0]
    return model.logit_scale.exp() * normalize(image) @ normalize(text).T
