"""Distillation from the frozen backbone, so that training does not forget what it knew.

In: scores, and the frozen backbone's scores. Out: a loss. Never: the truth of pairs.
"""

from typing import ClassVar

from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import Mask, Matrix, divergence, mean_over_ranks, reference_of
from vlmtune.types import ScoreShard


class Distillation(ShardedObjective):
    r"""The divergence of the scores s from the scores r of the frozen backbone.

    $L = \frac{\tau^2}{2} \Big( \overline{KL\big(\mathrm{softmax}_k \tfrac{r_{ik}}{\tau} \,\|\,
    \mathrm{softmax}_k \tfrac{s_{ik}}{\tau}\big)} + \overline{KL\big(\mathrm{softmax}_l
    \tfrac{r_{lj}}{\tau} \,\|\, \mathrm{softmax}_l \tfrac{s_{lj}}{\tau}\big)} \Big)$
    with means over images and over texts. The factor $\tau^2$ keeps the size of gradients the same
    at all temperatures. A row or column is a distribution over its scored pairs: without a scored
    pair it has no term, with a single pair it costs 0. Adding a constant to a row leaves the first
    part unchanged.

    The loss has its minimum, 0, where the adapter scores as the backbone does: add it to a loss
    that teaches something new.

    Choose it where a model must not lose what it can do.

    - Requirements: any records; a backbone with pooled embeddings of both sides.
    - Recommended: add it to another loss, and raise `weight` until retained abilities stop falling.
    - Relations: the `RetentionBudget` callback measures forgetting and acts on it.
    - Config: `--model.objectives '[info_nce, distillation]'`.

    Source: Hinton et al. 2015, section 2 (temperature and its square); over the rows and columns
    of a batch's scores, Zheng et al. 2023 (ZSCL).

    Args:
        temperature: $\tau$ > 0; above 1 small probabilities count for more.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> values, eye = torch.zeros(2, 2), torch.eye(2, dtype=torch.bool)
        >>> scores = Scores(values, torch.ones_like(eye), reference=values + 3)
        >>> Distillation()(scores, Targets(eye, eye, eye))
        tensor(0.)
    """

    needs = frozenset({"reference"})
    regulariser: ClassVar[bool] = True

    def __init__(self, weight: Factor = 1.0, temperature: PositiveFloat = 1.0) -> None:
        super().__init__(weight)
        self.temperature = temperature

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        # A distribution over texts for each image of this rank.
        rows = shard.rows
        computed = rows.computed
        reference = reference_of(rows, "Distillation")
        by_image = self._divergence(rows.values, reference, computed)
        to_text = mean_over_ranks(by_image, computed.any(dim=1), group)
        # Then a distribution over images for each text, so that columns become rows.
        columns = shard.columns
        computed = columns.computed.T
        reference = reference_of(columns, "Distillation").T
        by_text = self._divergence(columns.values.T, reference, computed)
        to_image = mean_over_ranks(by_text, computed.any(dim=1), group)
        return (to_text + to_image) / 2

    def _divergence(
        self, values: Matrix, reference: Matrix, computed: Mask
    ) -> Float[Tensor, "rows"]:
        # The frozen side is the target: no gradient, and the type of the scores.
        wanted = reference.detach().to(values.dtype)
        terms = divergence(wanted / self.temperature, values / self.temperature, computed)
        # A temperature T divides gradients by T squared.
        return self.temperature**2 * terms
