"""Symmetric InfoNCE with any number of true captions per image.

In: scores and targets. Out: a loss. Never: a true caption as a negative.
"""

from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Loss, ShardedObjective
from vlmtune.objectives.functional import true_contrast
from vlmtune.types import ScoreShard


class InfoNCE(ShardedObjective):
    r"""Contrastive loss in both directions over a matrix of scores.

    Image to text, for each true pair (i, j):
    $-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \text{ false of } i} e^{s_{ik}}}$,
    averaged over the true pairs of an image, then over images. Text to image is the same with
    images and texts exchanged; the loss is the mean of both. The denominator leaves out the other
    true captions of an image. With one true caption per image it is CLIP's loss.

    Choose it first with a dual adapter: it ranks true captions above all others.

    - Requirements: images with captions; hard negatives of a record are further negatives.
    - Recommended: the largest batch that fits, as negatives come from it.
    - Relations: `Sigmoid` judges each pair alone. Add `CEClip`, `EqSim` or `FSCClip` for
      compositions.
    - Config: `--model.objectives '[info_nce]'`.

    Source: van den Oord et al. 2018, eq. 4; symmetric form Radford et al. 2021, figure 3.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> InfoNCE()(Scores.full(torch.zeros(2, 2)), Targets(eye, eye, eye))
        tensor(0.6931)
    """

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        # Anchors are rows: images with their texts.
        rows = shard.rows
        to_text = true_contrast(rows.values, shard.row_targets.truth, rows.computed, group)
        # Then texts with their images, so that columns become rows.
        columns = shard.columns
        truth = shard.column_targets.truth
        to_image = true_contrast(columns.values.T, truth.T, columns.computed.T, group)
        return (to_text + to_image) / 2
