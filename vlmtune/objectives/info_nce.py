"""Symmetric InfoNCE with any number of true captions per image, none of them a negative."""

from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.objectives.base import ShardedObjective, World
from vlmtune.objectives.functional import contrast, shared_mean
from vlmtune.types import ScoreShard


class InfoNCE(ShardedObjective):
    r"""Contrastive loss in both directions over a matrix of scores.

    Image to text, for each true pair (i, j):
    $-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \text{ false of } i} e^{s_{ik}}}$,
    averaged over the true pairs of an image, then over images; text to image likewise; the loss is
    the mean of both. Other true captions of an image leave its denominator: they are neither
    positives of this term nor negatives. With one true caption per image it is CLIP's loss.

    Source: van den Oord et al. 2018, eq. 4; symmetric form Radford et al. 2021, figure 3.

    Args:
        weight: Factor in the sum of objectives.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> InfoNCE()(Scores.full(torch.zeros(2, 2)), Targets(eye, eye, eye))
        tensor(0.6931)
    """

    def share(self, share: ScoreShard, world: World) -> Float[Tensor, ""]:
        """Returns the terms of the rank's images and texts that have a true partner."""
        rows, columns = share.rows, share.columns
        image_to_text = _one_way(rows.values, rows.computed, share.row_targets.truth, world)
        text_to_image = _one_way(
            columns.values.T, columns.computed.T, share.column_targets.truth.T, world
        )
        return (image_to_text + text_to_image) / 2


def _one_way(
    values: Float[Tensor, "rows columns"],
    computed: Bool[Tensor, "rows columns"],
    truth: Bool[Tensor, "rows columns"],
    world: World,
) -> Float[Tensor, ""]:
    true = truth & computed
    losses = contrast(values, true, ~truth & computed)
    return shared_mean(losses, true.any(dim=1), world)
