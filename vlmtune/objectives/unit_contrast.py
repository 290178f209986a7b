"""The unit loss of half-truths: units of a caption against their foils and the units of others.

In: scores of units and their foils, as phrases. Out: a loss. Never: the scores of captions.
"""

from typing import ClassVar

import torch
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Loss, ShardedObjective
from vlmtune.objectives.functional import embedded_of, mean_over_ranks, only, phrases_of, row_means
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
    units an image and one foil a unit. With one unit an image this is its loss. With more it
    differs: the paper averages a contrast of all first units and one of all second units, each with
    its own foil; here an image meets the units and its own foils of all draws at once, and a
    unit that other images have as well is not a negative of them.

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

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        embedded_of(shard.rows, "UnitContrast")
        units = phrases_of(shard.rows, "UnitContrast")
        values = units.values
        truth = units.truth
        # A foil is a unit as well if it is true of an image of any rank.
        is_unit = group.sum(truth.sum(dim=0)) > 0
        negatives = units.foils | (is_unit & ~truth)
        other_units = only(values, negatives).logsumexp(dim=1)
        to_unit = torch.logaddexp(values, other_units[:, None]) - values
        # Every rank has all units, for its own images: only sums over images travel.
        sums = only(values, ~truth).logsumexp(dim=0)
        other_images = group.gather(sums[None]).logsumexp(dim=0)
        to_image = torch.logaddexp(values, other_images) - values
        terms = row_means((to_unit + to_image) / 2, truth)
        return mean_over_ranks(terms, truth.any(dim=1), group)
