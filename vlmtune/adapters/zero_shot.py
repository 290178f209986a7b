"""No adaptation: the backbone's own scores, the baseline of every comparison.

In: frozen pooled embeddings. Out: scores of all pairs. Never: a trained weight.
"""

from typing_extensions import override

from vlmtune.adapters.base import DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.types import FeatureSpec, Pooled


class ZeroShot(DualAdapter[Pooled, Pooled]):
    r"""Scores $s_{ij} = e^{\tau} \cos(v_i, t_j)$ of the frozen embeddings; nothing is trained.

    Choose it as the baseline of a comparison.

    - Requirements: no records; nothing is trained, so `fit` stops.
    - Inputs: pooled embeddings of a dual encoder.
    - Relations: `Matching()` is the baseline of backbones with a matching head.
    - Config: none; `vlmtune evaluate` scores a bare backbone by it.

    Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", section 2.3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("pooled")


class ImagesAlone(ZeroShot):
    """The frozen embeddings of a backbone that reads no texts; it scores nothing."""

    @override
    def attach(self, backbone: Backbone) -> None:
        backbone.check_fits(self.image_input, "image")
