"""CyCLIP's consistency: pairs of pairs are as close by text as by image, and across."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.objectives.base import Need, ShardedObjective
from vlmtune.objectives.functional import embedded_of
from vlmtune.types import ScoreShard


class CyClip(ShardedObjective):
    r"""$L = a L_I + b L_C$ on cosines between images $u_i$ and texts $v_j$.

    $L_C = \frac{1}{N} \sum_{p,q} w_p w_q (\langle u_p, v_q \rangle - \langle u_q, v_p \rangle)^2$,
    $L_I = \frac{1}{N} \sum_{p,q} w_p w_q (\langle u_p, u_q \rangle - \langle v_p, v_q \rangle)^2$
    over ordered pairs of true pairs $p = (i, j)$, with $w_p$ one over the number of true texts of
    image i and N the number of images that have one. With one caption per image this is the
    paper's loss and $w = 1$; with several, each image weighs the same, and two captions of one
    image are drawn to one embedding. Texts true of no image (hard negatives) and images without a
    true text take no part. The temperature has no gradient from it.

    It says nothing of which pair is true: add it to a contrastive loss. With one caption per image
    $L_C$ is `EqSim` with v1 of all pairs, on cosines, without margin, divided by images.

    Source: Goel et al. 2022 (CyCLIP), section 3; sum over N squared pairs divided by N, as the
    released code has it. The authors give both 0.25 and 0.5 for the two factors.

    Args:
        weight: Factor in the sum of objectives.
        in_modal: Factor a.
        cross_modal: Factor b.

    Raises:
        UserError: A factor is negative, or both are 0.

    Example:
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> u, v = torch.eye(2), torch.eye(2).flip(0)
        >>> scores = Scores(u @ v.T, torch.ones(2, 2) > 0, Embedded(u, v, torch.ones(())))
        >>> true = torch.eye(2) > 0
        >>> CyClip()(scores, Targets(true, true, true))
        tensor(0.)
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"embedded"})
    regulariser: ClassVar[bool] = True

    def __init__(
        self, weight: float = 1.0, in_modal: float = 0.25, cross_modal: float = 0.25
    ) -> None:
        super().__init__(weight)
        if min(in_modal, cross_modal) < 0 or in_modal + cross_modal == 0:
            raise UserError(
                f"expected factors >= 0 with one above 0, got {in_modal=}, {cross_modal=}: "
                "raise one"
            )
        self.in_modal = in_modal
        self.cross_modal = cross_modal

    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns the terms of the rank's own true pairs; 0 where no text is true of an image.

        Raises:
            UserError: The scores come without embeddings.
        """
        rows, columns = embedded_of(shard.rows, "CyClip"), embedded_of(shard.columns, "CyClip")
        own, text = (shard.row_targets.truth & shard.rows.computed).nonzero(as_tuple=True)
        everything = group.gather(torch.stack([own + shard.row_start, text], dim=1))
        images, texts = everything.unbind(1)
        captions = torch.bincount(images, minlength=len(columns.image)).to(rows.image.dtype)
        u, v = rows.image[own], rows.text[text]
        others_u, others_v = columns.image[images], rows.text[texts]
        gaps = self.cross_modal * (u @ others_v.T - v @ others_u.T).square()
        gaps = gaps + self.in_modal * (u @ others_u.T - v @ others_v.T).square()
        mine = captions[own + shard.row_start].reciprocal()
        terms = torch.einsum("p,q,pq->", mine, captions[images].reciprocal(), gaps)
        return terms / (captions > 0).sum().clamp_min(1)
