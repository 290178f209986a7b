"""Symmetric InfoNCE with any number of true captions per image, none of them a negative."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.objectives.base import Objective
from vlmtune.types import Scores, Targets


class InfoNCE(Objective):
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
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> InfoNCE()(Scores.full(torch.zeros(2, 2)), Targets(eye, eye, eye))
        tensor(0.6931)
    """

    def forward(self, scores: Scores, targets: Targets) -> Float[Tensor, ""]:
        """Returns the loss; rows and columns without a true entry have no term."""
        values, computed, true = scores.values, scores.computed, targets.truth
        image_to_text = _one_way(values, computed, true)
        text_to_image = _one_way(values.T, computed.T, true.T)
        return (image_to_text + text_to_image) / 2


def _one_way(
    values: Float[Tensor, "rows columns"],
    computed: Bool[Tensor, "rows columns"],
    true: Bool[Tensor, "rows columns"],
) -> Float[Tensor, ""]:
    true = true & computed
    # Finite rather than -inf: a row without negatives must not put NaN into the gradient.
    lowest = torch.finfo(values.dtype).min
    negatives = values.masked_fill(~computed | true, lowest).logsumexp(dim=1, keepdim=True)
    losses = torch.logaddexp(values, negatives) - values
    count = true.sum(dim=1)
    rows = (losses * true).sum(dim=1) / count.clamp_min(1)
    return rows.sum() / (count > 0).sum().clamp_min(1)
