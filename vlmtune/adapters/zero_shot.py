"""No adaptation: the backbone's own scores, the baseline of every comparison."""

from vlmtune.adapters.base import DualAdapter
from vlmtune.types import FeatureSpec, Pooled


class ZeroShot(DualAdapter[Pooled, Pooled]):
    r"""Scores $s_{ij} = e^{\tau} \cos(v_i, t_j)$ of the frozen embeddings; nothing is trained.

    Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
    Supervision", section 2.3.
    """

    def __init__(self) -> None:
        super().__init__()
        self.image_input = self.text_input = FeatureSpec("pooled")
