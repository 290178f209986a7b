"""CE-CLIP's losses on hard negative captions: an intra-modal contrast and a cross-modal rank.

In: scores with embeddings, and targets. Out: a loss. Never: the making of hard negatives.
"""

import torch
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import (
    Mask,
    Matrix,
    contrast,
    embedded_of,
    hard_negatives,
    mean_over_ranks,
)
from vlmtune.types import ScoreShard


class CEClip(ShardedObjective):
    r"""$L = a L_{IMC} + b L_{CMR}$ for images that come with hard negative captions.

    Intra-modal contrast, for each true pair (i, j):
    $-\log \frac{e^{\lambda \langle u_i, v_j \rangle}}{e^{\lambda \langle u_i, v_j \rangle}
    + \sum_{k \in H} e^{\lambda \langle v_j, v_k \rangle}}$, averaged over true pairs. The positive
    is image to text, the negatives are text to text. H holds every text of the batch that is a hard
    negative of some image and not true of image i. $\lambda$ is the scale of the scores. A true
    pair with an empty H costs 0.

    Cross-modal rank, for each true pair (i, j) and each hard negative k of image i:
    $\max(0, s_{ik} - s_{ij} + \theta)$, averaged over these triples; 0 without triples. The
    threshold $\theta$ starts at 0. After each training step it becomes the mean gap
    $s_{ij} - s_{ik}$ of that step, clamped to $[0, u]$: each gap must reach the mean gap of the
    previous step. Evaluation and steps without triples leave it unchanged. Scores include their
    temperature, and so does u.

    The paper has one threshold for each kind of generated negative. Targets do not record kinds, so
    this loss has one. The released code also counts missing negatives in the divisor of the rank
    loss; this loss counts only existing negatives. Add it to a contrastive loss such as `InfoNCE`.

    Choose it for records with hard negatives and a dual adapter.

    - Requirements: hard negatives of the captions; without any it is 0.
    - Recommended: add it to `InfoNCE`, with the default factors.
    - Relations: `FSCClip` softens the labels, `TripletClip` needs an image for each hard negative.
    - Config: `--model.objectives '[info_nce, ce_clip]'`.

    Source: Zhang et al. 2024 (CE-CLIP), the intra-modal contrastive and the cross-modal rank loss
    with adaptive threshold; the rest follows the released code of January 2024 (commit 2d07821).
    From commit 47cef4e on, that code uses the first hard negative of the batch as the positive of
    the intra-modal contrast.

    Args:
        intra_modal: Factor a.
        rank: Factor b.
        upper: Largest threshold u.

    Example:
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> u, v = torch.eye(2)[:1], torch.eye(2)
        >>> scores = Scores(u @ v.T, torch.ones(1, 2) > 0, Embedded(u, v, torch.ones(())))
        >>> truth, same_group = torch.tensor([[1, 0]]) > 0, torch.tensor([[1, 1]]) > 0
        >>> objective = CEClip(intra_modal=0.0, rank=1.0)
        >>> targets = Targets(truth, same_group, same_group)
        >>> [float(objective(scores, targets)) for _ in range(2)]
        [0.0, 0.0]
        >>> objective.threshold
        tensor(1.)
    """

    needs = frozenset({"embedded"})
    threshold: Loss

    def __init__(
        self,
        weight: Factor = 1.0,
        intra_modal: Factor = 0.3,
        rank: Factor = 0.2,
        upper: Factor = 10.0,
    ) -> None:
        super().__init__(weight)
        self.intra_modal = intra_modal
        self.rank = rank
        self.upper = upper
        self.register_buffer("threshold", torch.zeros(()))

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        scores = shard.rows
        truth = shard.row_targets.truth
        row, column = shard.row_targets.true_pairs()
        hard = hard_negatives(scores, shard.row_targets)
        # Ranks add counts: a text counts if it is a hard negative of any image of any rank.
        hard_counts = group.sum(hard.sum(dim=0))
        false = (hard_counts > 0) & ~truth[row]
        embedded = embedded_of(scores, "CEClip")
        # One row for each true pair, its caption being the anchor.
        anchors = embedded.text[column]
        products = embedded.image[row] * anchors
        cosines = products.sum(dim=1)
        to_image = embedded.scale * cosines
        to_texts = embedded.scale * anchors @ embedded.text.T
        # The caption should be nearer to its image than to any false caption.
        losses = contrast(to_image, to_texts, false)
        every_pair = torch.ones_like(row, dtype=torch.bool)
        intra = mean_over_ranks(losses, every_pair, group)
        # (pairs, texts): by how much the true caption leads each text.
        true_scores = scores.values[row, column]
        gaps = true_scores[:, None] - scores.values[row]
        rank = self._rank(gaps, hard[row], group)
        return self.intra_modal * intra + self.rank * rank

    def _rank(self, gaps: Matrix, hard: Mask, group: ProcessGroup) -> Loss:
        gaps = gaps.flatten()
        hard = hard.flatten()
        losses = (self.threshold - gaps).clamp_min(0)
        loss = mean_over_ranks(losses, hard, group)
        if self.training:
            # The next step's threshold is the mean gap of this one, the same on all ranks.
            part = mean_over_ranks(gaps.detach(), hard, group)
            gap = group.sum(part).clamp(0, self.upper)
            # A step without hard negatives has no gap, and leaves it unchanged.
            has_gap = group.sum(hard.sum()) > 0
            self.threshold.copy_(torch.where(has_gap, gap, self.threshold))
        return loss
