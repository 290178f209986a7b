"""Image-text matching: whether a pair is true, and whether the true caption ranks first.

In: scores of chosen pairs, and targets. Out: a loss. Never: a choice of pairs.
"""

from torch.nn.functional import softplus
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import mean_over_ranks, true_contrast
from vlmtune.types import ScoreShard


class ITM(ShardedObjective):
    r"""$L = a L_{match} + b L_{rank}$ over the scored pairs.

    $L_{match}$ is the mean over all scored pairs of $-\log \sigma(s)$ where the pair is true and
    $-\log(1 - \sigma(s))$ where it is false: two-class cross-entropy with $s$ the difference of
    the two logits. ALBEF scores each true pair, one hard image for its text and one hard text for
    its image (`HardPairs`).

    $L_{rank}$ is, for each true pair (i, j),
    $-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_k e^{s_{ik}}}$ with k over the scored texts that are
    false of image i, averaged over the true texts of an image, then over images. METER scores 15
    false captions per image, sampled from the corpus without excluding other true captions;
    here a true caption is never a negative. An image without a scored true text has no ranking
    term; an image without a scored false text costs 0.

    METER fine-tunes for retrieval with the plain sum of both (a = b = 1). ALBEF pre-trains with
    matching alone (b = 0).

    Choose it for matching heads (`Matching`, `FusionTuning`).

    - Requirements: images with captions, and pairs with false captions for each image.
    - Recommended: `RankingPairs` with both factors (METER), `HardPairs` with `ranking: 0` (ALBEF).
    - Relations: with `ranking: 0` on all pairs it is `PairBCE`.
    - Config: `--model.objectives '[itm]'`.

    Source: matching from Li et al. 2021 (ALBEF), section 3.2; ranking from Dou et al. 2022 (METER),
    as EqSim's appendix C and METER's released retrieval code use it.

    Args:
        matching: Factor a.
        ranking: Factor b.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> truth = torch.tensor([[True, False]])
        >>> ITM(ranking=0.0)(Scores.full(torch.zeros(1, 2)), Targets(truth, truth, truth))
        tensor(0.6931)
    """

    def __init__(self, weight: Factor = 1.0, matching: Factor = 1.0, ranking: Factor = 1.0) -> None:
        super().__init__(weight)
        self.matching = matching
        self.ranking = ranking

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        values = shard.rows.values
        computed = shard.rows.computed
        truth = shard.row_targets.truth
        # softplus(-s) where the pair is true, softplus(s) where it is false.
        losses = softplus(values.where(~truth, -values))
        matching = mean_over_ranks(losses.flatten(), computed.flatten(), group)
        ranking = true_contrast(values, truth, computed, group)
        return self.matching * matching + self.ranking * ranking
