"""LoRA on the layers of either tower, whatever library they come from.

In: pixels and captions, by way of the updated towers. Out: scores of all pairs.
Never: a change of the weights themselves.
"""

from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt
from torch.nn.utils import parametrize
from typing_extensions import override

from vlmtune.adapters.base import Dropout, DualAdapter
from vlmtune.adapters.low_rank import LowRank, projections
from vlmtune.adapters.towers import (
    fix_fingerprint,
    image_tower,
    params_of_last,
    text_tower,
)
from vlmtune.backbones.base import Backbone, Tower
from vlmtune.errors import UserError
from vlmtune.types import FeatureSpec, Pooled

Target = Literal["query", "key", "value", "out", "mlp"]


class LoRA(DualAdapter[Pooled, Pooled]):
    r"""Trains low-rank updates of weights inside the towers; the weights themselves are frozen.

    $s_{ij} = e^{\tau} \cos(F_I(v_i), F_T(y_j)) + b$, F the backbone with $W + \frac{\alpha}{r} B A$
    in place of each chosen W (out x in), A (r x in) random and B (out x r) zero at the start. Each
    projection has its own pair, also where a library packs query, key and value into one weight
    (`nn.MultiheadAttention`, timm). The frozen W never change.

    Choose it to change the towers with few trained parameters.

    - Requirements: towers that run block by block; each step runs the towers it updates.
    - Recommended: the default rank, and `targets` with "mlp" if it learns too little.
    - Relations: `FullFineTuning` trains the weights themselves, `LastBlocks` the last blocks.
    - Config: `--model.adapter lora`.

    Source: Hu et al. 2021 (LoRA), section 4.1, their letters; queries and values are the targets
    of section 4.2, and $\alpha = r$ gives a factor of 1. `dropout` leaves out the same input
    features of an update for all tokens of a step; in the paper they differ from token to token.

    Args:
        rank: r.
        alpha: $\alpha$.
        dropout: Probability with which an input feature of an update is left out in training.
        targets: Which weights of each block: "query", "key", "value", "out" (of attention) and
            "mlp" (both of its layers). None for queries and values.
        image: Whether the image tower is updated.
        text: Whether the text tower is updated.
        options: Options of `DualAdapter`.

    Example:
        >>> LoRA(rank=8, image=False).image_input
        FeatureSpec(kind='pooled', layer=-1, frozen=True)
    """

    def __init__(
        self,
        rank: PositiveInt = 4,
        alpha: PositiveFloat = 4.0,
        dropout: Dropout = 0.0,
        targets: list[Target] | None = None,
        image: bool = True,
        text: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.targets = ("query", "value") if targets is None else tuple(targets)
        self.rank = rank
        self.alpha = alpha
        self.dropout = dropout
        self.on_image = image
        self.on_text = text
        self._updates: list[LowRank] = []  # modules of the backbone
        self.image_input = FeatureSpec("pooled", frozen=not image)
        self.text_input = FeatureSpec("pooled", frozen=not text)

    @override
    def attach(self, backbone: Backbone) -> None:
        towers: list[Tower] = []
        if self.on_image:
            towers.append(image_tower(backbone, optional=True))
        if self.on_text:
            towers.append(text_tower(backbone))
        super().attach(backbone)
        # A store is named by the weights as they were loaded.
        fix_fingerprint(backbone)
        for tower in towers:
            self._parametrize(tower, backbone)

    def _parametrize(self, tower: Tower, backbone: Backbone) -> None:
        matches = []
        for block in tower.blocks:
            matches += projections(block, self.targets)
        if not matches:
            raise UserError(
                f"expected weights for {', '.join(self.targets)} in {type(tower).__name__}, got "
                "none that are known: choose other targets or another backbone"
            )
        weights = [getattr(module, name) for module, name, _, _ in matches]
        # A weight that no embedding uses would get no gradient.
        used_weights = params_of_last(tower, backbone, tower.layers, weights)
        used = set(map(id, used_weights))
        for (module, name, parts, chosen), weight in zip(matches, weights, strict=True):
            if id(weight) in used:
                update = LowRank(weight, parts, chosen, self.rank, self.alpha, self.dropout)
                update.train(self.training)
                parametrize.register_parametrization(module, name, update)
                self._updates.append(update)

    @override
    def train(self, mode: bool = True) -> "LoRA":
        """Sets the mode of the updates, too; the backbone around them has its own."""
        for update in self._updates:
            update.train(mode)
        return super().train(mode)
