"""CLIP-Adapter: a residual bottleneck after the frozen embeddings of either side.

In: frozen pooled embeddings. Out: scores of all pairs. Never: a change of the towers.
"""

from typing import Annotated, Any

from annotated_types import Ge, Lt
from pydantic import PositiveInt
from torch import nn
from typing_extensions import override

from vlmtune.adapters.base import DualAdapter, Vectors
from vlmtune.backbones.base import Backbone
from vlmtune.types import FeatureSpec, Pooled

Ratio = Annotated[float, Ge(0), Lt(1)]
"""How much of an embedding is learned."""


class Bottleneck(DualAdapter[Pooled, Pooled]):
    r"""Scores $s_{ij} = e^{\tau} \cos(A_I(v_i), A_T(t_j)) + b$ of frozen pooled embeddings.

    $A(f) = \alpha \, W_2 \, \mathrm{ReLU}(W_1 f) + (1 - \alpha) f$ with $W_1$ (d/r x d) and
    $W_2$ (d x d/r), no biases. $W_2$ starts as zero, so at first A is f scaled by a constant, and
    the scores are the backbone's.

    Choose it for few records: only a part $\alpha$ of an embedding is learned.

    - Requirements: images with captions; features of both come from the store.
    - Recommended: the defaults; `text: 0.2` to change captions too.
    - Relations: a `LinearProbe` with fewer parameters and a non-linear layer.
    - Config: `--model.adapter bottleneck`.

    Source: Gao et al. 2021 (CLIP-Adapter), section 3.2, equations (5) to (8); its $\beta$ is our
    $\alpha$ of texts. The defaults are the paper's residual ratio 0.2 for images and reduction r =
    4. Starting $W_2$ as zero is ours.

    Args:
        image: $\alpha$ of the images, in (0, 1); 0 leaves them as they are.
        text: $\alpha$ of the texts, likewise.
        reduction: r, d at most.
        options: Options of `DualAdapter`.

    Example:
        >>> Bottleneck(image=0.2, text=0.2).spec()["init_args"]["reduction"]
        4
    """

    def __init__(
        self, image: Ratio = 0.2, text: Ratio = 0.0, reduction: PositiveInt = 4, **options: Any
    ) -> None:
        super().__init__(**options)
        self.image_ratio = image
        self.text_ratio = text
        self.reduction = reduction
        self.image_input = self.text_input = FeatureSpec("pooled")

    @override
    def attach(self, backbone: Backbone) -> None:
        super().attach(backbone)
        if self.image_ratio:
            self.image = _layers(backbone.embed_dim, self.reduction)
        if self.text_ratio:
            self.text = _layers(backbone.embed_dim, self.reduction)

    @override
    def embed_image(self, image: Pooled) -> Vectors:
        return self._mixed(image.values, "image", self.image_ratio)

    @override
    def embed_text(self, text: Pooled) -> Vectors:
        return self._mixed(text.values, "text", self.text_ratio)

    def _mixed(self, pooled: Vectors, name: str, ratio: float) -> Vectors:
        if not ratio:
            return pooled
        changed = self.get_submodule(name)(pooled)
        return ratio * changed + (1 - ratio) * pooled


def _layers(width: int, reduction: int) -> nn.Sequential:
    hidden = max(1, width // reduction)
    first = nn.Linear(width, hidden, bias=False)
    last = nn.Linear(hidden, width, bias=False)
    # Zero at the start, so that the untrained adapter changes nothing but lengths.
    nn.init.zeros_(last.weight)
    return nn.Sequential(first, nn.ReLU(), last)
