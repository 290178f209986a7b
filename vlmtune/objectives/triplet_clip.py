"""TripletCLIP's loss: a hard negative caption for each image, on a scene and on its twin."""

from jaxtyping import Float
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import ShardedObjective
from vlmtune.objectives.functional import contrast, mean_over_ranks
from vlmtune.types import ScoreShard


class TripletClip(ShardedObjective):
    r"""The sum of two NegCLIP losses, one over the scenes and one over their negative scenes.

    For groups of two images and two captions (x, y, x', y'), such as a PUG:AR4T scene and its
    negative scene, the paper's loss is NegCLIP(x, y; y') + NegCLIP(x', y'; y). Each image, of
    either set, contrasts its caption with all other captions, its twin's included; each caption
    contrasts its image with images of other groups, and never with the twin image. So
    $L = \overline{-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \text{ false of } i} e^{s_{ik}}}}
    + \overline{-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{l \in O_j} e^{s_{lj}}}}$
    with $O_j$ the images outside the group of text j of which it is false. The bars are means over
    the true pairs of an image (text), then over images (texts) that have one; the others have no
    term.

    Differs from twice `InfoNCE` only in the second term, where `InfoNCE` also has the twin. Differs
    from the released code in one thing: there a caption meets the other groups' images of its own
    set, here those of both sets. Which of two scenes counts as "the negative" is arbitrary, and
    exchanging them leaves this loss the same. Groups of other shapes are taken alike.

    Source: Patel et al. 2024 (TripletCLIP), section 3; the authors made it for pre-training and
    advise against fine-tuning with it.

    Args:
        weight: Factor in the sum of objectives.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> truth, own = torch.eye(2) > 0, torch.ones(2, 2) > 0
        >>> TripletClip()(Scores.full(torch.zeros(2, 2)), Targets(truth, own, own))
        tensor(0.6931)
    """

    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns the part of this rank's images and texts."""
        rows, columns = shard.rows, shard.columns
        true = shard.row_targets.truth & rows.computed
        false = ~shard.row_targets.truth & rows.computed
        to_text = mean_over_ranks(contrast(rows.values, true, false), true.any(dim=1), group)
        targets = shard.column_targets
        true = targets.truth & columns.computed
        others = ~targets.truth & ~targets.same_group & columns.computed
        losses = contrast(columns.values.T, true.T, others.T)
        return to_text + mean_over_ranks(losses, true.any(dim=0), group)
