"""SigLIP's loss: binary classification of each image-text pair of the batch.

In: scores and targets. Out: a loss. Never: a comparison within a row or a column.
"""

from torch.nn.functional import softplus
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Loss, ShardedObjective
from vlmtune.objectives.functional import mean_over_ranks
from vlmtune.types import ScoreShard


class Sigmoid(ShardedObjective):
    r"""Each scored pair costs $\log(1 + e^{-y s})$, with y = 1 if it is true and y = -1 if false.

    $L = \frac{1}{N} \sum_{i,j} \log(1 + e^{-y_{ij} s_{ij}})$, where N counts the images with a
    scored pair, not the pairs: an image costs more if it is compared with more texts. Every true
    caption of an image is a positive. The adapter learns the paper's temperature and bias, so the
    scores contain them. Without a bias the many false pairs dominate the first steps.

    Choose it for SigLIP, whose scores are log-odds already.

    - Requirements: images with captions, and an adapter that trains its temperature and bias.
    - Recommended: an adapter with `learn_scale`, and SigLIP with `initial_bias: null`, or
      `initial_scale: 10` and `initial_bias: -10`.
    - Relations: `PairBCE` divides by pairs in place of images; `InfoNCE` needs no bias.
    - Config: `--model.objectives '[sigmoid]'`.

    Source: Zhai et al. 2023, section 3.2 and algorithm 1.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> Sigmoid()(Scores.full(torch.zeros(2, 2)), Targets(eye, eye, eye))
        tensor(1.3863)
    """

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        values = shard.rows.values
        computed = shard.rows.computed
        # y s, so that one formula serves true and false pairs.
        signed = values.where(shard.row_targets.truth, -values)
        losses = softplus(-signed).masked_fill(~computed, 0)
        terms = losses.sum(dim=1)
        return mean_over_ranks(terms, computed.any(dim=1), group)
