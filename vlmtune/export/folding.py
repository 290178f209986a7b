"""A trained linear map of text embeddings, folded into the projection of the text tower.

In: a backbone, and a `TextMap`. Out: the backbone, changed. Never: a map that the projection cannot
hold, which is an error before anything is changed.
"""

from typing import Any

import torch
from torch import nn

from vlmtune.adapters.base import Adapter
from vlmtune.adapters.text_map import TextMap
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.hf.hf_clip import HFCLIP
from vlmtune.backbones.hf.siglip import SigLIP
from vlmtune.backbones.open_clip.open_clip import OpenClip

Projection = nn.Linear | nn.Parameter  # a parameter is w x d, as open_clip multiplies


def fold(backbone: Backbone, adapter: Adapter) -> str | None:
    """Multiplies the text tower's projection by the map of a `TextMap`.

    Returns why that is not possible, or None if it is done.
    """
    # Other adapters compute more than a linear map: a `LinearProbe` adds a trained bias.
    if not isinstance(adapter, TextMap):
        return "adds weights of its own"
    target = _projection(backbone)
    if target is None:
        return "maps texts behind a tower that ends without a projection"
    # In double precision, so that a product is rounded once.
    trained_map = adapter.text.weight.detach().double()
    with torch.no_grad():
        if isinstance(target, nn.Parameter):
            target.copy_(target.double() @ trained_map.T)
            return None
        # torch keeps a linear layer as d x w, so the map comes from the left.
        target.weight.copy_(trained_map @ target.weight.double())
        if target.bias is not None:
            target.bias.copy_(trained_map @ target.bias.double())
    return None


def _projection(backbone: Backbone) -> Projection | None:
    """The last, linear step of the text tower; None if it ends otherwise."""
    projection: Any = None
    if isinstance(backbone, OpenClip):
        network: Any = backbone.model
        tower = getattr(network, "text", network)
        projection = getattr(tower, "text_projection", None)
    elif isinstance(backbone, HFCLIP):
        projection = backbone.model.text_projection
    elif isinstance(backbone, SigLIP):
        projection = backbone.model.text_model.head
    return projection if isinstance(projection, nn.Linear | nn.Parameter) else None
