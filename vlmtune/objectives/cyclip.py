"""CyCLIP's consistency: two true pairs are as close by image as by text, and across modalities.

In: embeddings and true pairs. Out: a loss. Never: a reward for true pairs above false ones.
"""

from typing import ClassVar

import torch
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import count_of, embedded_of, gather_pairs
from vlmtune.types import ScoreShard


class CyClip(ShardedObjective):
    r"""$L = a L_I + b L_C$ on cosines between images $u_i$ and texts $v_j$.

    $L_C = \frac{1}{N} \sum_{p,q} w_p w_q (\langle u_p, v_q \rangle - \langle u_q, v_p \rangle)^2$,
    $L_I = \frac{1}{N} \sum_{p,q} w_p w_q (\langle u_p, u_q \rangle - \langle v_p, v_q \rangle)^2$
    over ordered pairs of true pairs $p = (i, j)$. $w_p$ is one over the number of true texts of
    image i, and N counts the images with a true text. With one caption per image $w = 1$, which is
    the paper's loss. With several, each image weighs the same, and two captions of one image are
    pulled together. Texts without an image (hard negatives) and images without a text take no part.
    The temperature gets no gradient.

    It does not reward true pairs: add it to a contrastive loss. With one caption per image $L_C$ is
    (N - 1) times `EqSim` with v1 on all pairs, on cosines, without a margin.

    Choose it to make distances between images agree with distances between captions.

    - Requirements: images with captions; hard negatives take no part.
    - Recommended: add it to `InfoNCE`, with the default factors.
    - Relations: `EqSim` holds scores equal for chosen pairs, with a margin.
    - Config: `--model.objectives '[info_nce, cyclip]'`.

    Source: Goel et al. 2022 (CyCLIP), section 3; the sum over N squared pairs is divided by N, as
    in the released code. The authors give both 0.25 and 0.5 for the two factors.

    Args:
        in_modal: Factor a.
        cross_modal: Factor b.

    Example:
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> u, v = torch.eye(2), torch.eye(2).flip(0)
        >>> scores = Scores(u @ v.T, torch.ones(2, 2) > 0, Embedded(u, v, torch.ones(())))
        >>> true = torch.eye(2) > 0
        >>> CyClip()(scores, Targets(true, true, true))
        tensor(0.)
    """

    needs = frozenset({"embedded"})
    regulariser: ClassVar[bool] = True

    def __init__(
        self, weight: Factor = 1.0, in_modal: Factor = 0.25, cross_modal: Factor = 0.25
    ) -> None:
        super().__init__(weight)
        self.in_modal = in_modal
        self.cross_modal = cross_modal

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        rows = embedded_of(shard.rows, "CyClip")
        columns = embedded_of(shard.columns, "CyClip")
        row, text = shard.row_targets.true_pairs()
        images, texts = gather_pairs(row, text, shard, group)
        # Pairs p of this rank's images (u, v) against pairs q of all ranks.
        u = rows.image[row]
        v = rows.text[text]
        all_u = columns.image[images]
        all_v = rows.text[texts]
        # Image p with text q should score as text p with image q.
        cross_gaps = u @ all_v.T - v @ all_u.T
        cross_modal = cross_gaps.square()
        # Two images should be as similar as their texts.
        in_gaps = u @ all_u.T - v @ all_v.T
        in_modal = in_gaps.square()
        gaps = self.cross_modal * cross_modal + self.in_modal * in_modal
        # An image counts as one, however many captions it has.
        captions = count_of(images, len(columns.image))
        weight = captions.to(rows.image.dtype).reciprocal()
        w_p = weight[row + shard.row_start]
        w_q = weight[images]
        terms = torch.einsum("p,q,pq->", w_p, w_q, gaps)
        # N counts the images of all ranks that have a caption.
        count = (captions > 0).sum()
        return terms / count.clamp_min(1)
