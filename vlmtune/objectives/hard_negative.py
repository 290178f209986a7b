"""Matching against hard negatives: the expectation over sampling them, EqSim's HardNeg baseline.

In: scores and targets. Out: a loss. Never: a sample, as the expectation is exact.
"""

from torch.nn.functional import softplus
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, ShardedObjective
from vlmtune.objectives.functional import (
    Mask,
    Matrix,
    mean_over_images,
    mean_over_ranks,
    only,
    row_means,
)
from vlmtune.types import ScoreShard


class HardNegative(ShardedObjective):
    r"""The expected loss of image-text matching on sampled hard negatives.

    EqSim's table 6 adds "hard negative sampling" to fine-tuning. Its released code follows ALBEF:
    for each true pair (i, j) it draws one false text k for the image with probability
    $p_{ik} \propto e^{s_{ik}}$ and one false image l for the text with probability
    $q_{lj} \propto e^{s_{lj}}$, and matches the pair and its two negatives. This loss is the mean
    over all draws. p and q carry no gradient.

    $L = \frac{1}{3} \big( \overline{-\log \sigma(s_{ij})}
    + \overline{\sum_k p_{ik} \log(1 + e^{s_{ik}})}
    + \overline{\sum_l q_{lj} \log(1 + e^{s_{lj}})} \big)$

    The bars are means over images with a true text (first over the true texts of an image), over
    the same images, and over texts with a true image. With one caption per image it is the exact
    expectation of ALBEF's loss. An image or text with a true partner but no false one has term 0.

    Scores are matching logits: 0 must mean "as likely true as false". For scores without
    such a zero (cosines times a temperature) use `relative`, which compares each hard negative with
    the true pair: $L = \frac{1}{2} \big( \overline{\sum_k p_{ik} \log(1 + e^{s_{ik} - s_{ij}})}
    + \overline{\sum_l q_{lj} \log(1 + e^{s_{lj} - s_{ij}})} \big)$.

    Add it to a contrastive loss such as `InfoNCE`, as in the table.

    Choose it where a batch has few hard pairs: it weighs false pairs by their scores.

    - Requirements: images with captions; no hard negatives of the records.
    - Recommended: add it to `InfoNCE`; `relative: true` for a dual adapter.
    - Relations: the expectation of `ITM` with `HardPairs`, by the current scores.
    - Config: `--model.objectives '[info_nce, hard_negative]'`.

    Source: Wang et al. 2023 (EqSim), section 5.4, table 6, and its FIBER fine-tuning code; Li et
    al. 2021 (ALBEF), section 3.2.

    Args:
        relative: Compare with the true pair's score instead of zero.

    Example:
        >>> import torch
        >>> from vlmtune.types import Scores, Targets
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> HardNegative()(Scores.full(torch.zeros(2, 2)), Targets(eye, eye, eye))
        tensor(0.6931)
    """

    def __init__(self, weight: Factor = 1.0, relative: bool = False) -> None:
        super().__init__(weight)
        self.relative = relative

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        rows = shard.rows
        columns = shard.columns
        truth = shard.row_targets.truth
        column_truth = shard.column_targets.truth
        # Anchors are rows: images with their texts, and texts with their images.
        for_images = self._negatives(rows.values, truth, rows.computed, group)
        computed = columns.computed.T
        for_texts = self._negatives(columns.values.T, column_truth.T, computed, group)
        negatives = for_images + for_texts
        if self.relative:
            return negatives / 2
        true = truth & rows.computed
        positives = row_means(softplus(-rows.values), true)
        matched = mean_over_ranks(positives, true.any(dim=1), group)
        return (matched + negatives) / 3

    def _negatives(self, values: Matrix, truth: Mask, computed: Mask, group: ProcessGroup) -> Loss:
        true = truth & computed
        false = ~truth & computed
        # The chance of drawing each false text; a row without one has none.
        logits = only(values.detach(), false)
        chances = logits.softmax(dim=1) * false
        if not self.relative:
            terms = chances * softplus(values)
            expected = terms.sum(dim=1)
            return mean_over_ranks(expected, true.any(dim=1), group)
        row, column = true.nonzero(as_tuple=True)
        # One row for each true pair: how far each text lies above its true caption.
        true_values = values[row, column]
        gaps = values[row] - true_values[:, None]
        terms = chances[row] * softplus(gaps)
        expected = terms.sum(dim=1)
        return mean_over_images(expected, row, true, group)
