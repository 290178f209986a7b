"""A tiny random model of each backbone, by the stem of its YAML. A new backbone adds a line."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import yaml
from transformers.utils import logging

from tests.backbones import hf_models, libraries
from tests.tiny import write_model
from vlmtune.backbones.base import Backbone
from vlmtune.config import ROOT, instantiate

PLUGINS = ROOT / "configs/plugins/backbones"
Scores = Callable[[Path, torch.Tensor, list[str]], torch.Tensor]


class Kind(NamedTuple):
    """How the model is written, and what its library says the scores are.

    `scores` are those of embeddings and `matches` those of a matching head, where there is one.
    `context` counts the tokens of a caption, or of the question that holds it.
    """

    write: Callable[..., Path]
    scores: Scores | None
    matches: Scores | None = None
    weights: str = "model.safetensors"
    preprocessing: tuple[str, str] = ("preprocessor_config.json", "image_mean")
    context: int = 12


KINDS = {
    "open_clip": Kind(
        write_model,
        libraries.open_clip_scores,
        weights="open_clip_model.safetensors",
        preprocessing=("open_clip_config.json", "mean"),
    ),
    "hf_clip": Kind(hf_models.write_clip, libraries.clip_scores),
    "metaclip2": Kind(hf_models.write_metaclip2, libraries.metaclip2_scores),
    "siglip": Kind(hf_models.write_siglip, libraries.siglip_scores),
    "siglip2_naflex": Kind(hf_models.write_siglip2_naflex, libraries.naflex_scores),
    "align": Kind(hf_models.write_align, libraries.align_scores),
    "flava": Kind(hf_models.write_flava, libraries.flava_scores, libraries.flava_matches),
    "blip": Kind(hf_models.write_blip, libraries.blip_scores, libraries.blip_matches),
    "blip2": Kind(hf_models.write_blip2, None, libraries.blip2_matches),
    "bridgetower": Kind(
        hf_models.write_bridgetower, libraries.bridgetower_scores, libraries.bridgetower_matches
    ),
    "vilt": Kind(hf_models.write_vilt, None, libraries.vilt_matches),
    "llava": Kind(hf_models.write_llava, None, libraries.llava_matches, context=48),
    "timm_image": Kind(hf_models.write_timm, None, preprocessing=("config.json", "mean")),
}


def tiny_backbone(stem: str, folder: Path, **options: Any) -> Backbone:
    """Writes a tiny model into a folder, and makes the backbone of the stem's YAML from it.

    Options are those of the function that writes the model.
    """
    return backbone_of(stem, KINDS[stem].write(folder, **options))


@cache
def tiny(stem: str) -> Backbone:
    """The tiny model of a stem, made once, which no test may change."""
    logging.disable_progress_bar()
    with TemporaryDirectory() as temporary:
        return tiny_backbone(stem, Path(temporary) / stem)


def backbone_of(stem: str, folder: Path) -> Backbone:
    """Makes the backbone of the stem's YAML from a model that is there."""
    spec = yaml.safe_load((PLUGINS / f"{stem}.yaml").read_text(encoding="utf-8"))
    spec["init_args"] = {"model": str(folder)}
    return instantiate(spec, Backbone)
