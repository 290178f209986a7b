"""A trained linear map of embeddings, folded into the projection that the backbone ends with.

In: a backbone, and an adapter that maps its pooled embeddings. Out: the backbone, changed. Never: a
map that the projection cannot hold, which is an error before anything is changed.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.linear_probe import LinearProbe
from vlmtune.adapters.text_map import TextMap
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.hf_clip import HFCLIP
from vlmtune.backbones.hf.siglip import SigLIP
from vlmtune.backbones.open_clip.open_clip import OpenClip

Projection = nn.Linear | nn.Parameter  # a parameter is w x d, as open_clip multiplies


def fold(backbone: Backbone, adapter: Adapter) -> str | None:
    """Multiplies the projections by the maps of a `TextMap` or `LinearProbe`, weights and bias.

    Returns why that is not possible, or None if it is done.
    """
    # Other adapters compute more than a linear map.
    if not isinstance(adapter, TextMap | LinearProbe):
        return "adds weights of its own"
    maps = {"text": adapter.text}
    if isinstance(adapter, LinearProbe):
        maps["image"] = adapter.image
    changes: list[tuple[Tensor, Tensor]] = []
    for modality, layer in maps.items():
        # In double precision, so that a product is rounded once.
        weight = layer.weight.detach().double()
        offset = torch.zeros(len(weight)).to(weight)
        if layer.bias is not None:
            offset = layer.bias.detach().double()
        identity = torch.eye(len(weight)).to(weight)
        changes_nothing = weight.equal(identity) and not offset.any()
        target = _projection(backbone, modality)
        if target is None:
            if not changes_nothing:
                return f"maps {modality}s behind a tower that ends without a projection"
        elif offset.any() and getattr(target, "bias", None) is None:
            return f"adds a bias to embeddings of {modality}s, for which the projection has no room"
        else:
            changes += _products(target, weight, offset)
    # Only now, as the map of images may be refused after that of texts.
    with torch.no_grad():
        for parameter, value in changes:
            parameter.copy_(value)
    return None


def _products(
    target: Projection, weight: Float[Tensor, "d d"], offset: Float[Tensor, "d"]
) -> list[tuple[Tensor, Tensor]]:
    """The parameters of a projection, each with its value after the map."""
    if isinstance(target, nn.Parameter):
        before = target.detach().double()
        return [(target, before @ weight.T)]
    # torch keeps a linear layer as d x w, so the map comes from the left.
    before = target.weight.detach().double()
    products = [(target.weight, weight @ before)]
    if target.bias is not None:
        bias = target.bias.detach().double()
        mapped_bias = weight @ bias + offset
        products.append((target.bias, mapped_bias))
    return products


def _projection(backbone: Backbone, modality: str) -> Projection | None:
    """The last, linear step of a tower; None if it ends otherwise."""
    projection: Any = None
    if isinstance(backbone, OpenClip):
        network: Any = backbone.model
        if modality == "image":
            projection = getattr(network.visual, "proj", None)
        else:
            projection = getattr(getattr(network, "text", network), "text_projection", None)
    elif isinstance(backbone, HFCLIP):
        model = backbone.model
        projection = model.visual_projection if modality == "image" else model.text_projection
    elif isinstance(backbone, SigLIP) and modality == "text":
        projection = backbone.model.text_model.head
    return projection if isinstance(projection, nn.Linear | nn.Parameter) else None
