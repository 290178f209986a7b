"""What the libraries themselves say the scores of images and captions are."""

from functools import partial
from pathlib import Path
from typing import Any

import open_clip
import torch
import transformers
from torch.nn.functional import normalize

from vlmtune.backbones.word_tokenizer import WordTokenizer


def open_clip_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    ids = WordTokenizer((folder / "vocabulary.txt").read_text().split(), 12)(texts)
    return model.get_logits(pixels, ids)[0]


def _words(folder: Path, texts: list[str], **options: Any) -> dict[str, torch.Tensor]:
    """Ids and mask of captions by the library's own tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, **{"padding": True, "return_tensors": "pt"} | options)
    inputs.pop("token_type_ids", None)
    return inputs


def _all_pairs(folder: Path, pixels: torch.Tensor, texts: list[str]) -> dict[str, torch.Tensor]:
    """Inputs for each image with each caption, row by row."""
    inputs = _words(folder, texts)
    every = {name: x.repeat(len(pixels), 1) for name, x in inputs.items()}
    return {"pixel_values": pixels.repeat_interleave(len(texts), dim=0), **every}


def _matches(
    kind: Any, field: str, folder: Path, pixels: torch.Tensor, texts: list[str], **options: Any
) -> torch.Tensor:
    """Log-odds of a head of two classes."""
    model = kind.from_pretrained(folder).eval()
    logits = getattr(model(**_all_pairs(folder, pixels, texts), **options), field)
    return (logits[:, 1] - logits[:, 0]).view(len(pixels), -1)


blip_matches = partial(_matches, transformers.BlipForImageTextRetrieval, "itm_score")
blip2_matches = partial(
    _matches,
    transformers.Blip2ForImageTextRetrieval,
    "logits_per_image",
    use_image_text_matching_head=True,
)
bridgetower_matches = partial(_matches, transformers.BridgeTowerForImageAndTextRetrieval, "logits")


def _scores(kind: Any, folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = kind.from_pretrained(folder).eval()
    return model(pixel_values=pixels, **_words(folder, texts)).logits_per_image


clip_scores = partial(_scores, transformers.CLIPModel)
metaclip2_scores = partial(_scores, transformers.MetaClip2Model)
align_scores = partial(_scores, transformers.AlignModel)


def siglip_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.SiglipModel.from_pretrained(folder).eval()
    ids = _words(folder, texts, padding="max_length", max_length=12)["input_ids"]
    return model(pixel_values=pixels, input_ids=ids).logits_per_image


def naflex_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.Siglip2Model.from_pretrained(folder).eval()
    full = {"padding": "max_length", "max_length": 12, "padding_side": "right"}
    ids = _words(folder, texts, **full)["input_ids"]
    side = pixels.shape[3]
    first, *patches = pixels.movedim(1, 3).split(side, dim=1)
    shapes = first[:, 0, 0, :2].long()
    mask = torch.arange(len(patches))[None] < shapes.prod(dim=1, keepdim=True)
    values = torch.stack([patch.flatten(1) for patch in patches], dim=1)
    return model(
        pixel_values=values, pixel_attention_mask=mask.long(), spatial_shapes=shapes, input_ids=ids
    ).logits_per_image


def flava_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.FlavaModel.from_pretrained(folder).eval()
    inputs = _words(folder, texts)
    image = model.get_image_features(pixels).pooler_output[:, 0]
    words = {"attention_mask": inputs["attention_mask"]}
    text = model.get_text_features(inputs["input_ids"], **words).pooler_output[:, 0]
    return model.logit_scale.exp() * normalize(image) @ normalize(text).T


def flava_matches(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.FlavaForPreTraining.from_pretrained(folder).eval()
    inputs = _all_pairs(folder, pixels, texts)
    ids = inputs["input_ids"]
    model.mmm_image_weight = 0  # that head expects towers of one width
    logits = model(**inputs, input_ids_masked=ids, return_loss=False).itm_logits
    return (logits[:, 1] - logits[:, 0]).view(len(pixels), -1)


def blip_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.BlipForImageTextRetrieval.from_pretrained(folder).eval()
    cosines = model(**_all_pairs(folder, pixels, texts), use_itm_head=False).itm_score
    scale = torch.tensor(model.config.logit_scale_init_value).exp()
    return scale * cosines[:: len(texts), : len(texts)]


def blip2_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    """The largest cosines, at the temperature that pre-training starts with."""
    model = transformers.Blip2ForImageTextRetrieval.from_pretrained(folder).eval()
    inputs = _words(folder, texts)
    rows = [model(pixel_values=one[None], **inputs).logits_per_image for one in pixels]
    return torch.cat([row.view(1, -1) for row in rows]) / 0.07


def bridgetower_scores(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.BridgeTowerForContrastiveLearning.from_pretrained(folder).eval()
    output = model(**_all_pairs(folder, pixels, texts))
    image, text = output.image_embeds[:: len(texts)], output.text_embeds[: len(texts)]
    return model.logit_scale.exp() * image @ text.T


def vilt_matches(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    model = transformers.ViltForImageAndTextRetrieval.from_pretrained(folder).eval()
    inputs = _all_pairs(folder, pixels, texts)
    outside = inputs["pixel_values"] == -100
    inputs["pixel_values"] = inputs["pixel_values"].masked_fill(outside, 0)
    return model(**inputs, pixel_mask=(~outside[:, 0]).long()).logits.view(len(pixels), -1)


def llava_matches(folder: Path, pixels: torch.Tensor, texts: list[str]) -> torch.Tensor:
    """Log-odds of "yes" against "no", one pair at a time, of text with a token for each patch."""
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    images = "<image>" * model.config.image_seq_length
    yes, no = words.convert_tokens_to_ids(["yes", "no"])
    rows = []
    for one in pixels:
        for text in texts:
            asked = f'Does this figure show "{text}"? Please answer yes or no.'
            ids = words(f"USER: {images}\n{asked} ASSISTANT:", return_tensors="pt")["input_ids"]
            logits = model(input_ids=ids, pixel_values=one[None]).logits[0, -1]
            odds = logits.log_softmax(dim=-1)
            rows.append(odds[yes] - odds[no])
    return torch.stack(rows).view(len(pixels), -1)
