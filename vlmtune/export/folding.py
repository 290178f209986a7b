"""A trained linear map of embeddings, folded into the projection that the backbone ends with.

In: a backbone, and an adapter that maps its pooled embeddings. Out: the backbone, changed. Never: a
map that the projection cannot hold, which is an error before anything is changed.
"""

from typing import Any

import torch
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

    Returns:
        Why that is not possible, or None if it is done.
    """
    if not isinstance(adapter, TextMap | LinearProbe):
        return "adds weights of its own"
    maps = {"text": adapter.text}
    if isinstance(adapter, LinearProbe):
        maps["image"] = adapter.image
    folded: list[tuple[Tensor, Tensor]] = []
    for modality, layer in maps.items():
        given = None if layer.bias is None else layer.bias.detach().double()
        given = None if given is None or not given.any() else given
        weight = layer.weight.detach().double()
        target = _projection(backbone, modality)
        if target is None:
            identity = weight.equal(torch.eye(len(weight)).to(weight)) and given is None
            if not identity:
                return f"maps {modality}s behind a tower that ends without a projection"
            continue
        bias = getattr(target, "bias", None)
        if given is not None and bias is None:
            return f"adds a bias to embeddings of {modality}s, for which the projection has no room"
        if isinstance(target, nn.Linear):
            folded.append((target.weight, weight @ target.weight.detach().double()))
        else:
            folded.append((target, target.detach().double() @ weight.T))
        if bias is not None:
            offset = weight @ bias.detach().double()
            folded.append((bias, offset if given is None else offset + given))
    with torch.no_grad():
        for old, new in folded:
            old.copy_(new)
    return None


def _projection(backbone: Backbone, modality: str) -> Projection | None:
    """The last, linear step of a tower; None if it ends otherwise."""
    if isinstance(backbone, OpenClip):
        network: Any = backbone.model
        text = getattr(network, "text", network)
        part = network.visual if modality == "image" else text
        projection = getattr(part, "proj" if modality == "image" else "text_projection", None)
    elif isinstance(backbone, HFCLIP):
        model = backbone.model
        projection = model.visual_projection if modality == "image" else model.text_projection
    elif isinstance(backbone, SigLIP) and modality == "text":
        projection = backbone.model.text_model.head
    else:
        projection = None
    return projection if isinstance(projection, nn.Linear | nn.Parameter) else None
