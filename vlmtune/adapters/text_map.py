"""LABCLIP: one trained linear map of text embeddings; image embeddings stay untouched.

In: frozen pooled embeddings. Out: scores of all pairs. Never: a change of image embeddings.
"""

from torch import nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Scale, Vectors
from vlmtune.backbones.base import Backbone
from vlmtune.types import FeatureSpec, Pooled


class TextMap(DualAdapter[Pooled, Pooled]):
    r"""Scores $s_{ij} = e^{\tau} \cos(v_i, W t_j) + b$ of frozen pooled embeddings.

    $W$ is d x d (512 x 512 on CLIP ViT-B/32), has no bias and starts as the identity. Stored image
    embeddings and an index of them stay valid: only queries change.

    The paper trains it on a batch of B images and 2B texts: the caption of each image, and the same
    caption with attributes exchanged. Image to text compares with all 2B texts, text to image the B
    true captions alone ("HNB"). That is `InfoNCE` over groups of an image, a true and a false text.

    Choose it where image embeddings are indexed already and must stay valid.

    - Requirements: captions with hard negatives, such as the same words in another order.
    - Recommended: `InfoNCE`, as in the paper.
    - Relations: the text half of a `LinearProbe`, without its bias.
    - Config: `--model.adapter text_map`.

    Source: LABCLIP (Koishigarina, Uselis, Oh; ICLR 2026; arXiv 2502.03566). $\tau$ starts at 0.
    The paper has no $b$.

    Args:
        learn_scale: Whether $\tau$ and $b$ are trained.
        initial_scale: $e^{\tau}$ at the start, or None for the backbone's.

    Example:
        >>> TextMap().image_input.kind
        'pooled'
    """

    def __init__(self, learn_scale: bool = True, initial_scale: Scale | None = 1.0) -> None:
        super().__init__(learn_scale, initial_scale)
        self.image_input = self.text_input = FeatureSpec("pooled")

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        self.text = nn.Linear(backbone.embed_dim, backbone.embed_dim, bias=False)
        nn.init.eye_(self.text.weight)

    @override
    def embed_text(self, text: Pooled) -> Vectors:
        return self.text(text.values)
