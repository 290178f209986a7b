"""CLIC's losses: captions of joined images, their hard negatives, and the order of their sentences.

In: scores with embeddings, and targets. Out: a loss. Never: the joining of images.
"""

import torch
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import (
    embedded_of,
    hard_negatives,
    mean_contrast,
    mean_over_ranks,
)
from vlmtune.types import ScoreShard, positions, send


class CLIC(ShardedObjective):
    r"""$L = a L_{cont} + b L_{sneg} + c L_{uni}$; without hard negatives a is 1.

    - Contrast: $L_{cont}$ is `InfoNCE` over the texts that are true of an image of the batch: hard
      negatives are left out of it.
    - Negatives: $L_{sneg} = \overline{-\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \in H_i}
      e^{s_{ik}}}}$ with $H_i$ the hard negatives of image i: a mean over its true texts j, then
      over images with a hard negative.
    - Order: $L_{uni} = \overline{\| w_j - w_k \|^2}$, a mean over the pairs of true texts of the
      image's group, then over images with such a pair, w normalised. `JoinedImages` puts two
      sentences in both orders into the group; further true texts are not in the group.

    Each second batch of `JoinedImages` has single images, each with one caption and no hard
    negative. Its loss is CLIP's.

    Choose it to learn compositions and keep zero-shot abilities: it trains only the text tower.

    - Requirements: a dual adapter, and `JoinedImages` as `data.joined`, which needs images.
    - Recommended: `FullFineTuning(image=False)` and a learning rate of 1e-6.
    - Relations: `InfoNCE` with `data.negatives` is NegCLIP, with one image and one caption.
    - Config: `--config configs/experiments/overlays/clic.yaml`.

    Source: CLIC (NeurIPS 2025, arXiv 2505.24424), equations 4 to 7, and its released code
    (github.com/AmitPeleg/CLIC, commit dc845c7), a = b = 0.5 and c = 1. It differs in one point:
    in the paper $L_{cont}$ is the mean of four losses, each over one text of each image; here one
    loss has all four texts of each image, so that the order of texts in a batch does not matter. On
    the rendered world both forms bind nothing: 1.6 % of the seen pairs, and 1.4 % with the mean of
    four losses (last blocks, one seed).

    Args:
        contrast: Factor a.
        negatives: Factor b.
        order: Factor c.

    Example:
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> texts = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> scores = Scores.full(torch.zeros(1, 2), Embedded(texts[:1], texts, torch.tensor(1.0)))
        >>> both = torch.ones(1, 2) > 0
        >>> CLIC()(scores, Targets(both, both, both)), CLIC().order
        (tensor(0.8000), 1.0)
    """

    needs = frozenset({"embedded"})

    def __init__(
        self,
        weight: Factor = 1.0,
        contrast: Factor = 0.5,
        negatives: Factor = 0.5,
        order: Factor = 1.0,
    ) -> None:
        super().__init__(weight)
        self.contrast = contrast
        self.negatives = negatives
        self.order = order

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        values = shard.rows.values
        truth = shard.row_targets.truth
        hard = hard_negatives(shard.rows, shard.row_targets)
        has_negative = hard.any(dim=1)
        # A hard negative is a caption of no image: it is compared with its own image alone.
        is_caption = group.sum(truth.sum(dim=0)) > 0
        to_text = mean_contrast(values, truth, is_caption & ~truth, group)
        column_truth = shard.column_targets.truth.T
        to_image = mean_contrast(shard.columns.values.T, column_truth, ~column_truth, group)
        contrast = (to_text + to_image) / 2
        negatives = mean_contrast(values, truth & has_negative[:, None], hard, group)
        # Without hard negatives on any rank it is a plain batch.
        is_joined = group.sum(has_negative.sum()) > 0
        factor = torch.where(is_joined, self.contrast, 1.0)
        order = self._order(shard, group)
        return factor * contrast + self.negatives * negatives + self.order * order

    def _order(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        text = embedded_of(shard.rows, "CLIC").text
        targets = shard.row_targets.on_cpu()
        in_group = targets.truth & targets.same_group
        row, column = positions(in_group, text.device)
        counts = send(in_group.sum(dim=1), text.device)
        texts = text.index_select(0, column)
        zeros = text.new_zeros(len(in_group), text.shape[1])
        sums = zeros.index_add(0, row, texts)
        means = sums / counts.clamp_min(1)[:, None]
        # The mean square of the distances of all pairs follows from the distances to the mean.
        deviations = texts - means[row]
        distances = deviations.square().sum(dim=1)
        spread = distances.new_zeros(len(in_group)).index_add(0, row, distances)
        terms = 2 * spread / (counts - 1).clamp_min(1)
        return mean_over_ranks(terms, counts > 1, group)
