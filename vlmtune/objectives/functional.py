"""Tensor helpers of several objectives; each row of a matrix is one anchor.

In: scores and masks. Out: masks, terms of rows, and means over ranks. Never: a whole loss.
"""

from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import log_softmax

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.types import Embedded, PhraseScores, Scores, ScoreShard, Targets

T = TypeVar("T")
Loss = Float[Tensor, ""]
Matrix = Float[Tensor, "rows columns"]
"""A row for each anchor: images with texts as columns, or texts with images."""
Mask = Bool[Tensor, "rows columns"]
"""Which entries of a `Matrix` count."""


def row_means(values: Matrix, mask: Mask) -> Float[Tensor, "rows"]:
    """Means over the entries of each row where `mask` is True; 0 where a row has none.

    Example:
        >>> row_means(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.eye(2) > 0)
        tensor([1., 7.])
    """
    sums = values.masked_fill(~mask, 0).sum(dim=1)
    counts = mask.sum(dim=1)
    return sums / counts.clamp_min(1)


def mean_over_ranks(
    terms: Float[Tensor, "n"], counted: Bool[Tensor, "n"], group: ProcessGroup
) -> Loss:
    """This rank's part of the mean over the counted terms of all ranks; 0 where none counts.

    Example:
        >>> from vlmtune.distributed.process_group import ProcessGroup
        >>> counted = torch.tensor([True, False, True])
        >>> mean_over_ranks(torch.tensor([1.0, 2.0, 6.0]), counted, ProcessGroup())
        tensor(3.5000)
    """
    total = terms.masked_fill(~counted, 0).sum()
    count = group.sum(counted.sum())
    return total / count.clamp_min(1)


def mean_contrast(values: Matrix, positives: Mask, negatives: Mask, group: ProcessGroup) -> Loss:
    r"""This rank's part of a mean cross-entropy over the rows of all ranks with a positive.

    A row has $\frac{1}{|P_i|} \sum_{j \in P_i}
    -\log \frac{e^{s_{ij}}}{e^{s_{ij}} + \sum_{k \in N_i} e^{s_{ik}}}$: positives do not compete
    with each other. A row without positives or without negatives gives 0.

    Example:
        >>> from vlmtune.distributed.process_group import ProcessGroup
        >>> positives = torch.tensor([[True, True, False]])
        >>> mean_contrast(torch.zeros(1, 3), positives, ~positives, ProcessGroup())
        tensor(0.6931)
    """
    # log of the sum over the negatives; the positives of a row do not compete.
    others = only(values, negatives).logsumexp(dim=1, keepdim=True)
    losses = torch.logaddexp(values, others) - values
    means = row_means(losses, positives)
    return mean_over_ranks(means, positives.any(dim=1), group)


def contrast(
    positive: Float[Tensor, "rows"], values: Matrix, negatives: Mask
) -> Float[Tensor, "rows"]:
    """Cross-entropy of one positive a row against its negatives; 0 for a row without any."""
    others = only(values, negatives).logsumexp(dim=1)
    return torch.logaddexp(positive, others) - positive


def true_contrast(values: Matrix, truth: Mask, computed: Mask, group: ProcessGroup) -> Loss:
    """`mean_contrast` of the scored true entries of each row against its scored false ones."""
    return mean_contrast(values, truth & computed, ~truth & computed, group)


def divergence(wanted: Matrix, logits: Matrix, listed: Mask) -> Float[Tensor, "rows"]:
    r"""$KL(\mathrm{softmax}(w) \,\|\, \mathrm{softmax}(l))$ of each row over its listed entries."""
    log_p = log_softmax(only(logits, listed), dim=1)
    log_w = log_softmax(only(wanted, listed), dim=1)
    # What is not listed has no probability, and no term.
    gaps = (log_w - log_p).masked_fill(~listed, 0)
    terms = log_w.exp() * gaps
    return terms.sum(dim=1)


def mean_over_images(
    terms: Float[Tensor, "P"], rows: Int[Tensor, "P"], pairs: Mask, group: ProcessGroup
) -> Loss:
    """This rank's part of the mean over images of the mean over the true pairs of each.

    There is a term for each of the P pairs; `pairs` is True at them, and `rows` are their rows.
    """
    zeros = terms.new_zeros(len(pairs))
    sums = zeros.index_add(0, rows, terms)
    counts = pairs.sum(dim=1)
    means = sums / counts.clamp_min(1)
    return mean_over_ranks(means, counts > 0, group)


def gather_pairs(
    rows: Int[Tensor, "P"], texts: Int[Tensor, "P"], shard: ScoreShard, group: ProcessGroup
) -> tuple[Int[Tensor, "all"], Int[Tensor, "all"]]:
    """The images and the texts of the pairs of all ranks, numbered over all ranks.

    `texts` are numbered so already, `rows` from the first row of this rank's `shard`. Pairs alone
    travel: no rank holds a matrix of all images and all texts.
    """
    images = rows + shard.row_start
    pairs = torch.stack([images, texts], dim=1)
    all_images, all_texts = group.gather(pairs).unbind(dim=1)
    return all_images, all_texts


def count_of(numbers: Int[Tensor, "P"], total: int) -> Int[Tensor, "total"]:
    """How often each of 0 to `total` - 1 occurs; unlike `bincount` it does not wait for a GPU.

    Example:
        >>> count_of(torch.tensor([0, 2, 2]), 4)
        tensor([1, 0, 2, 0])
    """
    return numbers.new_zeros(total).index_add(0, numbers, torch.ones_like(numbers))


def only(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*#shape"]) -> Float[Tensor, "*shape"]:
    """The values where `mask` is True, elsewhere a number that has no weight in a softmax.

    It is finite rather than -inf: a row without values must not put NaN into the gradient.
    """
    lowest = torch.finfo(values.dtype).min
    return values.masked_fill(~mask, lowest)


def hard_negatives(scores: Scores, targets: Targets) -> Bool[Tensor, "N M"]:
    """True at the scored false pairs of one group: extra texts of an image, extra images of a text.

    Example:
        >>> truth, same_group = torch.eye(2) > 0, torch.ones(2, 2) > 0
        >>> targets = Targets(truth, same_group, same_group)
        >>> hard_negatives(Scores.full(torch.zeros(2, 2)), targets).tolist()
        [[False, True], [True, False]]
    """
    return targets.same_group & ~targets.truth & scores.computed


def embedded_of(scores: Scores, objective: str) -> Embedded:
    """The embeddings behind the scores; `objective` names the loss for the error."""
    cure = "choose an adapter with one embedding per image and text"
    return _given(scores.embedded, "scores with embeddings", objective, cure)


def teacher_of(scores: Scores, objective: str) -> Scores:
    """The teacher's scores; `objective` names the loss for the error."""
    cure = "set model.teacher to an export or a checkpoint"
    return _given(scores.teacher, "a teacher's scores", objective, cure)


def reference_of(scores: Scores, objective: str) -> Float[Tensor, "N M"]:
    """The frozen backbone's scores; `objective` names the loss for the error."""
    cure = "choose a dual backbone"
    return _given(scores.reference, "the frozen backbone's scores", objective, cure)


def average_of(scores: Scores, objective: str) -> Embedded:
    """The embeddings by the averaged weights; `objective` names the loss for the error."""
    cure = "compute scores with an AdaptationModule"
    return _given(scores.average, "embeddings by a moving average", objective, cure)


def phrases_of(scores: Scores, objective: str) -> PhraseScores:
    """The scores of the captions' phrases; `objective` names the loss for the error."""
    cure = "set data.phrases to NounPhrases or CaptionUnits"
    return _given(scores.phrases, "scores of phrases", objective, cure)


def _given(part: T | None, expected: str, objective: str, cure: str) -> T:
    """Returns a part of the scores that not every adapter, data set or run gives."""
    if part is None:
        raise UserError(
            f"expected {expected} for {objective}, got none: {cure}, or choose another objective"
        )
    return part
