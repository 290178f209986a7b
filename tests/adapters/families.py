"""Tiny models of each family of backbones, for adapters that work inside the towers."""

import copy

import torch

from tests.backbones.kinds import tiny
from vlmtune.backbones.base import Backbone
from vlmtune.types import Features, FeatureSpec

FAMILIES = ["open_clip", "hf_clip", "siglip", "flava"]
TEXTS = ["red cube", "a blue sphere left of the red cube", "dog"]
POOLED = FeatureSpec("pooled")


def backbone(family: str = "open_clip") -> Backbone:
    """A copy of the family's tiny model: 3 blocks a tower, images 24 wide, texts 16."""
    return copy.deepcopy(tiny(family))


def attached(adapter, family: str = "open_clip", seed: int = 0):
    """The adapter, attached to a copy of the family's tiny model, and that model."""
    model = backbone(family)
    torch.manual_seed(seed)
    adapter.attach(model)
    return adapter.eval(), model


def pixels(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def features(adapter, model, texts=TEXTS) -> tuple[Features, Features]:
    """What the adapter reads of four images and of the texts."""
    image = model.encode_image(pixels(), adapter.image_input)
    return image, model.encode_text(texts, adapter.text_input)


def embedded(adapter, model, texts=TEXTS) -> tuple[torch.Tensor, torch.Tensor]:
    image, text = features(adapter, model, texts)
    return adapter.embed_image(image), adapter.embed_text(text)


def plain(model, texts=TEXTS) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        image, text = model.encode_image(pixels(), POOLED), model.encode_text(texts, POOLED)
    return image.values, text.values


def trained(model) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def fit(adapter, model, steps: int = 2, texts=TEXTS, rate: float = 1e-2) -> None:
    """A few steps of Adam on a contrastive loss."""
    parameters = [p for m in (adapter, model) for p in m.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        image, text = embedded(adapter, model, texts)
        scores = adapter.scores(image[: len(text)], text).values
        torch.nn.functional.cross_entropy(scores, torch.arange(len(text))).backward()
        optimizer.step()


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
