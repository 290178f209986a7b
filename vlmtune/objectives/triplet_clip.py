"""TripletCLIP's loss: each image has a hard negative, the caption of its twin scene.

In: scores and targets. Out: a loss. Never: a twin image as a negative of a caption.
"""

from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Loss, ShardedObjective
from vlmtune.objectives.functional import mean_contrast, true_contrast
from vlmtune.types import ScoreShard


class TripletClip(ShardedObjective):
    r"""The sum of two NegCLIP losses, one over the scenes and one over their negative scenes.

    For groups of two images and two captions (x, y, x', y'), such as a PUG:AR4T scene and its
    negative scene, the paper's loss is NegCLIP(x, y; y') + NegCLIP(x', y'; y). Each image, of
    either set, contrasts its caption with all other captions, including its twin's. Each caption
    contrasts its image with images of other groups, never with the twin image:
    $L = \overline{-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \text{ false of } i} e^{s_{ik}}}}
    + \overline{-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{l \in O_j} e^{s_{lj}}}}$
    with $O_j$ the images outside the group of text j for which it is false. The bars are means over
    the true pairs of an image (text), then over images (texts) with a true pair.

    It differs from twice `InfoNCE` only in the second term, where `InfoNCE` includes the twin. It
    differs from the released code in one respect: there a caption meets only one set of the
    other groups' images, here both sets. Exchanging a scene and its negative leaves this loss
    unchanged. Groups of other shapes are treated alike.

    Choose it for pairs of scenes that differ in one thing.

    - Requirements: records of two images and two captions.
    - Recommended: alone, in place of `InfoNCE`, and for pre-training, as its authors advise.
    - Relations: twice `InfoNCE`, without the twin image as a negative of a caption.
    - Config: `--model.objectives '[triplet_clip]'`.

    Source: Patel et al. 2024 (TripletCLIP), section 3. The authors use it for pre-training and
    advise against fine-tuning with it.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> truth, same_group = torch.eye(2) > 0, torch.ones(2, 2) > 0
        >>> targets = Targets(truth, same_group, same_group)
        >>> TripletClip()(Scores.full(torch.zeros(2, 2)), targets)
        tensor(0.6931)
    """

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        rows = shard.rows
        to_text = true_contrast(rows.values, shard.row_targets.truth, rows.computed, group)
        columns = shard.columns
        targets = shard.column_targets
        true = targets.truth & columns.computed
        # The twin image is of the caption's own group.
        other_groups = ~targets.same_group & columns.computed
        false = ~targets.truth & other_groups
        to_image = mean_contrast(columns.values.T, true.T, false.T, group)
        return to_text + to_image
