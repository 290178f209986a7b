"""Fine-tuning of the last blocks: earlier blocks stay frozen, and their output may be stored.

In: states before the trained blocks. Out: scores of all pairs. Never: new weights.
"""

from typing import Any

from pydantic import NonNegativeInt
from torch import nn
from typing_extensions import override

from vlmtune.adapters.base import Decay, DualAdapter, Vectors
from vlmtune.adapters.towers import (
    check_blocks,
    image_tower,
    layer_scales,
    params_of_last,
    run_last,
    text_tower,
    unfreeze,
)
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.types import Features, FeatureSpec, Pooled


class LastBlocks(DualAdapter[Features, Features]):
    r"""Trains the last n blocks of one or both towers, their final norm and projection.

    $s_{ij} = e^{\tau} \cos(F_I(x_i), F_T(y_j)) + b$. $x$ (t x w) is the token state a frozen tower
    has before its last n blocks; $F$ is these blocks, the final norm, pooling and projection to d.
    $x$ may come from the feature store; a step then costs n blocks, without pixels. The trained
    weights are the backbone's own, so the first scores are the backbone's.

    Choose it to change the towers at the cost of a few blocks a step.

    - Requirements: towers that run block by block; the state before the trained blocks may be
      stored.
    - Recommended: two blocks of each tower, as in Cola; `image: 0` keeps indexed images valid.
    - Relations: `FullFineTuning` trains all blocks and the embeddings; `FTLate` trains new layers.
    - Config: `--model.adapter last_blocks`.

    Source: the usual partial fine-tuning; compared among others by Ray et al. 2023 (Cola), section
    5.2, "tuning the last two layers". (Section 11.1 there describes new layers on frozen
    features instead: `FTLate`.) `decay` is the layer-wise learning rate of Clark et
    al. 2020 (ELECTRA): block l of L gets $\gamma^{L - l}$ times the rate, later layers the full
    rate.

    Args:
        image: n of the image tower; 0 leaves it frozen.
        text: n of the text tower, likewise.
        decay: $\gamma$; None for one rate.
        options: Options of `DualAdapter`.

    Example:
        >>> LastBlocks(image=2, text=0).image_input
        FeatureSpec(kind='state', layer=-3, frozen=True)
    """

    def __init__(
        self,
        image: NonNegativeInt = 2,
        text: NonNegativeInt = 2,
        decay: Decay | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.counts = {"image": image, "text": text}
        self.decay = decay
        self.image_input = _spec(image)
        self.text_input = _spec(text)

    @override
    def attach(self, backbone: Backbone) -> None:
        self.towers: dict[str, Tower] = {}
        if self.counts["image"]:
            self.towers["image"] = image_tower(backbone)
        if self.counts["text"]:
            self.towers["text"] = text_tower(backbone)
        for modality, tower in self.towers.items():
            check_blocks(self.counts[modality], tower.layers, modality)
        super().attach(backbone)
        self.trained: dict[str, list[nn.Parameter]] = {}
        for modality, tower in self.towers.items():
            self.trained[modality] = _last(tower, backbone, self.counts[modality])
        for parameters in self.trained.values():
            unfreeze(backbone, parameters)

    @override
    def lr_scales(self) -> list[tuple[nn.Parameter, float]]:
        if self.decay is None:
            return []
        scales = []
        for modality, tower in self.towers.items():
            scales += layer_scales(tower, self.trained[modality], self.decay)
        return scales

    @override
    def embed_image(self, image: Features) -> Vectors:
        return self._embed("image", image)

    @override
    def embed_text(self, text: Features) -> Vectors:
        return self._embed("text", text)

    def _embed(self, modality: str, features: Features) -> Vectors:
        if isinstance(features, Pooled):
            return features.values
        tower = self.towers[modality]
        last = run_last(tower, features.trimmed(), self.counts[modality])
        return tower.finish(last)


def _spec(count: int) -> FeatureSpec:
    return FeatureSpec("state", -(count + 1)) if count else FeatureSpec("pooled")


def _last(tower: Tower, backbone: Backbone, count: int) -> list[nn.Parameter]:
    """The parameters of the last blocks and of the tower's end that an embedding uses."""
    first = tower.layers - count
    candidates: list[nn.Parameter] = []
    for block in tower.blocks[first:]:
        candidates += block.parameters()
    candidates += tower.tail
    return params_of_last(tower, backbone, count, candidates)
