"""READ's paraphrase alignment: two captions of one image are each other's match."""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Need, ShardedObjective
from vlmtune.objectives.functional import contrast, embedded_of, mean_over_ranks
from vlmtune.types import ScoreShard


class ReadAlignment(ShardedObjective):
    r"""Contrastive loss among texts: captions of one image against captions of others.

    For a text a and each text p that is true of an image of which a is true as well,
    $-\log \frac{e^{\lambda \langle v_a, v_p \rangle}}{e^{\lambda \langle v_a, v_p \rangle}
    + \sum_n e^{\lambda \langle v_a, v_n \rangle}}$ with $\lambda$ the scale of the scores and n
    over the texts that are true of some image but of none that a is true of; averaged over the p of
    a, then over the texts a that have one. A text without a second caption of its image has no
    term; without any such text the loss is 0, so a corpus with one caption per image trains nothing
    by it. Further captions of the same image are neither matches of this term nor negatives.

    The released method pairs each caption with one generated or annotated paraphrase and adds the
    loss with factor 0.5. Every ordered pair is a term here, there only paraphrase to caption. The
    other half of READ, reconstruction by a frozen decoder, is not part of it.

    It says nothing of images: add it to a contrastive loss.

    Source: Kwon et al. 2025 (READ), the sentence-level alignment objective.

    Args:
        weight: Factor in the sum of objectives.
        hard_negatives: Texts that are true of no image are negatives too (off in the released
            configuration).

    Example:
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> v = torch.eye(3)
        >>> scores = Scores(v[:2], torch.ones(2, 3) > 0, Embedded(v[:2], v, torch.ones(())))
        >>> true = torch.tensor([[True, True, False], [False, False, True]])
        >>> ReadAlignment()(scores, Targets(true, true, true))
        tensor(0.6931)
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"embedded"})
    regulariser: ClassVar[bool] = True

    def __init__(self, weight: float = 1.0, hard_negatives: bool = False) -> None:
        super().__init__(weight)
        self.hard_negatives = hard_negatives

    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns the terms of the rank's own texts; 0 where no image has two captions.

        Raises:
            UserError: The scores come without embeddings.
        """
        everyone = embedded_of(shard.rows, "ReadAlignment")
        own = embedded_of(shard.columns, "ReadAlignment").text
        related, described = _related(shard, group)
        itself = torch.arange(len(own), device=own.device)
        matches = related.clone()
        matches[itself, itself + shard.column_start] = False
        negatives = ~related & related.any(dim=1, keepdim=True)
        if not self.hard_negatives:
            negatives = negatives & described
        values = everyone.scale * (own @ everyone.text.T)
        return mean_over_ranks(contrast(values, matches, negatives), matches.any(dim=1), group)


def _related(
    shard: ScoreShard, group: ProcessGroup
) -> tuple[Bool[Tensor, "m M"], Bool[Tensor, "M"]]:
    """True where an own text and any text share an image, and at the texts that have an image."""
    image, text = shard.row_targets.truth.nonzero(as_tuple=True)
    # True pairs travel: what is true of all images and all texts is on no rank.
    pairs = group.gather(torch.stack([image + shard.row_start, text], dim=1))
    images, texts = pairs.unbind(1)
    mine = shard.column_targets.truth[images].T.to(torch.int32)
    counts = mine.new_zeros(len(mine), shard.row_targets.truth.shape[1]).index_add(1, texts, mine)
    return counts > 0, torch.bincount(texts, minlength=counts.shape[1]) > 0
