"""Text recovery: what an adapter keeps of an image gives the embedding of its captions.

In: embeddings and true pairs. Out: a loss. Never: a reward for true pairs above false ones.
"""

from typing import ClassVar

import torch
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Loss, ShardedObjective
from vlmtune.objectives.functional import embedded_of, mean_over_ranks
from vlmtune.types import ScoreShard


class TextRecovery(ShardedObjective):
    r"""$L$ is the mean over true pairs (i, j) of $1 - \cos(u_i, v_j)$.

    The text's embedding $v_j$ should be frozen: if both sides are trained, the loss has its minimum
    where all embeddings are equal.

    Choose it to keep what an image's captions say in few tokens of the image.

    - Requirements: images with captions, and an adapter whose text embeddings are frozen, such as
      `Compressed(contrast=True)` inside `OnEmbeddings`.
    - Recommended: add it to a loss such as `ITM` or `PairBCE`.
    - Relations: `OnEmbeddings(InfoNCE())` also separates an image from the captions of others.
    - Config: `objectives` of `configs/experiments/compare/heads.yaml`, row `recovered`.

    Source: EDJE (Taraday, Wagner, Baskin; ICLR 2026; arXiv 2510.06820), its cosine recovery of the
    text embedding. We could not find out which text embedding the paper recovers.

    Example:
        >>> import torch
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> u, v = torch.eye(2), torch.eye(2).flip(0)
        >>> scores = Scores(u @ v.T, torch.ones(2, 2) > 0, Embedded(u, v, torch.ones(())))
        >>> true = torch.eye(2) > 0
        >>> TextRecovery()(scores, Targets(true, true, true))
        tensor(1.)
    """

    needs = frozenset({"embedded"})
    regulariser: ClassVar[bool] = True

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        embedded = embedded_of(shard.rows, "TextRecovery")
        # This rank's images with the texts of all ranks; embeddings have the length 1.
        row, text = shard.row_targets.true_pairs()
        products = embedded.image[row] * embedded.text[text]
        cosines = products.sum(dim=1)
        counted = torch.ones_like(cosines, dtype=torch.bool)
        return mean_over_ranks(1 - cosines, counted, group)
