"""Linear probe: one trained linear map per modality over frozen pooled embeddings.

In: frozen pooled embeddings. Out: scores of all pairs. Never: a change of the towers.
"""

from torch import nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Scale, Vectors
from vlmtune.backbones.base import Backbone
from vlmtune.types import FeatureSpec, Pooled


class LinearProbe(DualAdapter[Pooled, Pooled]):
    r"""Scores $s_{ij} = e^{\tau} \cos(W_I v_i + b_I, W_T t_j + b_T) + b$.

    $W_I$ and $W_T$ are d x d (512 x 512 on CLIP ViT-B/32) and start as the identity, so the probe
    starts as the frozen model. Temperature $\tau$ and offset $b$ are learned, because a sigmoid
    loss at CLIP's temperature (100) would start saturated.

    Choose it first: a step costs two matrix products, and both sides are trained.

    - Requirements: images with captions; features of both come from the store.
    - Recommended: `initial_scale: 10` with `PairBCE` or `Sigmoid`.
    - Relations: `TextMap` leaves images as they are; `LoRA` and `LastBlocks` change the towers.
    - Config: `--model.adapter linear_probe`.

    Source: Cola (Ray et al. 2023), section 11.1, "Linear". The paper states neither its
    initialisation nor a temperature.

    Args:
        learn_scale: Whether $\tau$ and $b$ are trained.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.
    """

    def __init__(self, learn_scale: bool = True, initial_scale: Scale | None = None) -> None:
        super().__init__(learn_scale, initial_scale)
        self.image_input = self.text_input = FeatureSpec("pooled")

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        self.image = _identity(backbone.embed_dim)
        self.text = _identity(backbone.embed_dim)

    @override
    def embed_image(self, image: Pooled) -> Vectors:
        return self.image(image.values)

    @override
    def embed_text(self, text: Pooled) -> Vectors:
        return self.text(text.values)


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
