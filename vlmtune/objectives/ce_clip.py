"""CE-CLIP's two losses on hard negative captions: among texts, and ranked against the image."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, ShardedObjective
from vlmtune.objectives.functional import embedded_of, hard_negatives, mean_over_ranks
from vlmtune.types import Scores, ScoreShard


class CEClip(ShardedObjective):
    r"""$L = a L_{IMC} + b L_{CMR}$ for images that come with hard negative captions.

    Intra-modal contrast, for each true pair (i, j):
    $-\log \frac{e^{\lambda \langle u_i, v_j \rangle}}{e^{\lambda \langle u_i, v_j \rangle}
    + \sum_{k \in H} e^{\lambda \langle v_j, v_k \rangle}}$, averaged over true pairs. The positive
    is image to text, the negatives are text to text; H are all texts of the batch that are a hard
    negative of some image and not true of image i. $\lambda$ is the scale of the scores. Without
    such a text a true pair costs 0.

    Cross-modal rank, for each true pair (i, j) and each hard negative k of image i:
    $\max(0, s_{ik} - s_{ij} + \theta)$, averaged over these triples; 0 where there is none. The
    threshold starts at 0 and after each training step becomes the mean gap $s_{ij} - s_{ik}$ of
    that step over the same triples, kept in $[0, u]$: the next step asks each gap for what the last
    reached on average. In evaluation mode it stays. Scores are with their temperature, so u is in
    the same units.

    The paper has one threshold for each kind of generated negative; targets know no kinds, so
    there is one. The released code divides the rank loss by missing negatives too; here by those
    that exist. It is an addition to a contrastive loss such as `InfoNCE`.

    Source: Zhang et al. 2024 (CE-CLIP), the intra-modal contrastive and the cross-modal rank loss
    with adaptive threshold; details as in the released code.

    Args:
        weight: Factor in the sum of objectives.
        intra_modal: Factor a.
        rank: Factor b.
        upper: Largest threshold u.

    Raises:
        UserError: A factor or `upper` is negative, or both factors are 0.

    Example:
        >>> from vlmtune.types import Embedded, Targets
        >>> u, v = torch.eye(2)[:1], torch.eye(2)
        >>> scores = Scores(u @ v.T, torch.ones(1, 2) > 0, Embedded(u, v, torch.ones(())))
        >>> truth, own = torch.tensor([[True, False]]), torch.tensor([[True, True]])
        >>> objective = CEClip(intra_modal=0.0, rank=1.0)
        >>> [float(objective(scores, Targets(truth, own, own))) for _ in range(2)]
        [0.0, 0.0]
        >>> objective.threshold
        tensor(1.)
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"embedded"})
    threshold: Float[Tensor, ""]

    def __init__(
        self,
        weight: float = 1.0,
        intra_modal: float = 0.3,
        rank: float = 0.2,
        upper: float = 10.0,
    ) -> None:
        super().__init__(weight)
        if min(intra_modal, rank, upper) < 0 or intra_modal + rank == 0:
            raise UserError(
                f"expected factors and a largest threshold >= 0 with one factor above 0, got "
                f"{intra_modal=}, {rank=}, {upper=}: correct them"
            )
        self.intra_modal = intra_modal
        self.rank = rank
        self.upper = upper
        self.register_buffer("threshold", torch.zeros(()))

    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns the part of this rank's images; moves the threshold in training.

        Raises:
            UserError: The scores come without embeddings.
        """
        scores, targets = shard.rows, shard.row_targets
        row, column = (targets.truth & scores.computed).nonzero(as_tuple=True)
        hard = hard_negatives(scores, targets)
        # Hard of any image of any rank; a count, so that ranks can add theirs.
        pool = group.sum(hard.sum(dim=0)) > 0
        intra = self._intra_modal(scores, row, column, pool & ~targets.truth[row], group)
        gaps = scores.values[row, column][:, None] - scores.values[row]
        return self.intra_modal * intra + self.rank * self._ranked(gaps, hard[row], group)

    def _intra_modal(
        self,
        scores: Scores,
        row: Int[Tensor, "P"],
        column: Int[Tensor, "P"],
        negatives: Bool[Tensor, "P M"],
        group: ProcessGroup,
    ) -> Float[Tensor, ""]:
        embedded = embedded_of(scores, "CEClip")
        anchors = embedded.text[column]
        true = embedded.scale * (embedded.image[row] * anchors).sum(dim=1)
        false = (embedded.scale * anchors @ embedded.text.T).masked_fill(
            ~negatives, torch.finfo(true.dtype).min
        )
        losses = torch.logaddexp(true, false.logsumexp(dim=1)) - true
        return mean_over_ranks(losses, torch.ones_like(row, dtype=torch.bool), group)

    def _ranked(
        self, gaps: Float[Tensor, "P M"], hard: Bool[Tensor, "P M"], group: ProcessGroup
    ) -> Float[Tensor, ""]:
        losses = (self.threshold - gaps).clamp_min(0)
        loss = mean_over_ranks(losses.flatten(), hard.flatten(), group)
        if self.training:
            with torch.no_grad():
                gap = group.sum(mean_over_ranks(gaps.detach().flatten(), hard.flatten(), group))
                self.threshold.copy_(gap.clamp(0, self.upper))
        return loss
