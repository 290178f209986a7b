"""The unit loss of half-truths: units of a caption against their foils and the units of others.

In: scores of units and their foils, as phrases. Out: a loss. Never: the scores of captions.
"""

from typing import ClassVar

import torch
from pydantic import PositiveInt
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import (
    Mask,
    embedded_of,
    mean_over_ranks,
    only,
    phrases_of,
    row_means,
)
from vlmtune.types import ScoreShard


class UnitContrast(ShardedObjective):
    r"""Contrasts each unit of a caption, an object or a relation, with foils and other units.

    A longer caption with one wrong detail often scores above the short true one: a model that
    never met the detail alone does not know it. For each image i and each unit k that is true of it
    $\ell_{ik} = \frac{1}{2} \Big( -\log \frac{e^{s_{ik}}}{e^{s_{ik}} + \sum_{j \in U_i} e^{s_{ij}}
    + \sum_{f \in F_i} e^{s_{if}}} - \log \frac{e^{s_{ik}}}{e^{s_{ik}} + \sum_{l \in I_k}
    e^{s_{lk}}} \Big)$
    and L is the mean over images with a unit of the mean over their units. $U_i$ are the units of
    the batch that are false of image i, $F_i$ the foils made from units of image i alone, and $I_k$
    the images of which unit k is false. Foils of other images do not enter.

    It does not read the captions themselves. Add it to `InfoNCE`, which with hard negative captions
    is the paper's other half.

    Choose it where a model should notice a single wrong detail.

    - Requirements: a dual adapter, and `CaptionUnits` as `data.phrases`.
    - Recommended: `weight: 0.5` beside an `InfoNCE` with `data.negatives`.
    - Relations: `C2LIP` compares noun phrases with images and patches, and has no foils.
    - Config: `--config configs/experiments/overlays/half_truths.yaml`.

    Source: Kargi, Uselis and Oh 2026, "Half-Truths" (arXiv 2602.23906), there with weight 0.5, two
    units an image and one foil a unit. The paper contrasts the first units of all images, each
    with its foil, then their second units: `draws: 2`. Without `draws` an image meets all units and
    all its foils at once. On the rendered world this binds more: 79.2 to 80.4 % of the seen pairs,
    `draws: 2` 75.4 to 77.0 % (last blocks, three seeds). Unlike in the paper, a unit that
    is true of an image is never a negative of it.

    Args:
        draws: How many units of an image count, each contrasted with the units of the same number
            in other images and with the foil of this number. None contrasts all units at once.

    Example:
        >>> from vlmtune.types import Embedded, PhraseScores, Scores, Targets
        >>> one, truth = torch.ones(1, 1), torch.tensor([[True, False]])
        >>> units = PhraseScores(torch.zeros(1, 2), truth, torch.ones(2, 1), ~truth)
        >>> scores = Scores(one, one > 0, Embedded(one, one, torch.tensor(1.0)), phrases=units)
        >>> UnitContrast()(scores, Targets.diagonal(1))
        tensor(0.3466)
    """

    needs = frozenset({"embedded", "phrases"})
    regulariser: ClassVar[bool] = True

    def __init__(self, weight: Factor = 1.0, draws: PositiveInt | None = None) -> None:
        super().__init__(weight)
        self.draws = draws

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        embedded_of(shard.rows, "UnitContrast")
        units = phrases_of(shard.rows, "UnitContrast")
        values = units.values
        truth = units.truth
        to_unit = torch.zeros_like(values)
        counted = torch.zeros_like(truth)
        for mine, foils in self._contrasts(truth, units.foils):
            # A foil is a unit as well if it is true of an image of any rank.
            is_unit = group.sum(mine.sum(dim=0)) > 0
            negatives = foils | (is_unit & ~truth)
            other_units = only(values, negatives).logsumexp(dim=1)
            terms = torch.logaddexp(values, other_units[:, None]) - values
            to_unit = torch.where(mine, terms, to_unit)
            counted = counted | mine
        # Every rank has all units, for its own images: only sums over images travel.
        sums = only(values, ~truth).logsumexp(dim=0)
        other_images = group.gather(sums[None]).logsumexp(dim=0)
        to_image = torch.logaddexp(values, other_images) - values
        means = row_means((to_unit + to_image) / 2, counted)
        return mean_over_ranks(means, counted.any(dim=1), group)

    def _contrasts(self, truth: Mask, foils: Mask) -> list[tuple[Mask, Mask]]:
        """The units that are contrasted with each other, and their foils."""
        if self.draws is None:
            return [(truth, foils)]
        # The first unit of an image has number 1, and so has its first foil.
        unit_number = truth.cumsum(dim=1)
        foil_number = foils.cumsum(dim=1)
        contrasts = []
        for number in range(1, self.draws + 1):
            unit = truth & (unit_number == number)
            foil = foils & (foil_number == number)
            contrasts.append((unit, foil))
        return contrasts
