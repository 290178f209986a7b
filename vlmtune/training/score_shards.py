"""Cuts and gathers scores over ranks: one rank's `ScoreShard`, or the full matrix.

In: embeddings or scores of this rank's batch, and its `ShardLayout`. Out: a `ScoreShard`.
Never: scores over the network if embeddings are enough; memory grows with N, not with its square.
"""

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, pad

from vlmtune.adapters.base import DualAdapter
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.types import Pooled, PooledTokens, Scores, ScoreShard, Targets

Embeddings = Pooled | PooledTokens


def dual_score_shard(
    adapter: DualAdapter,
    image: Embeddings,
    text: Embeddings,
    layout: ShardLayout,
    group: ProcessGroup,
) -> ScoreShard:
    """Scores the rank's images against all texts, and all images against the rank's texts.

    Args:
        adapter: Compares embeddings.
        image: Embeddings of the n images of the rank's batch.
        text: Embeddings of the texts of the rank's batch.
        layout: Their position among those of all ranks.
        group: All ranks.
    """
    if group.size == 1:
        scores = _scores(adapter, image, text)
        return ScoreShard(scores, layout.rows, scores, layout.columns)
    text = text[layout.texts]
    images, texts = group.gather(image), group.gather(text)
    return ScoreShard(
        _scores(adapter, image, texts),
        layout.rows,
        _scores(adapter, images, text),
        layout.columns,
        layout.row_start,
        layout.column_start,
    )


def _scores(adapter: DualAdapter, image: Embeddings, text: Embeddings) -> Scores:
    pooled = [side.values if isinstance(side, Pooled) else side.pooled for side in (image, text)]
    scores = adapter.scores(*pooled)
    if isinstance(image, Pooled) or isinstance(text, Pooled) or scores.embedded is None:
        return scores
    embedded = replace(scores.embedded, image_tokens=image.tokens, text_tokens=text.tokens)
    return replace(scores, embedded=embedded)


def joint_score_shard(scores: Scores, layout: ShardLayout, group: ProcessGroup) -> ScoreShard:
    """Pads the scores of a rank's own pairs to the size of all ranks; other pairs have no score.

    Args:
        scores: Scores of the n images of the rank's batch against its m texts.
        layout: Their position among those of all ranks, which share no column.
        group: All ranks.
    """
    if group.size == 1:
        return ScoreShard(scores, layout.rows, scores, layout.columns)
    n, m = scores.values.shape
    left, right = layout.column_start, layout.rows.truth.shape[1] - layout.column_start - m
    above, below = layout.row_start, layout.columns.truth.shape[0] - layout.row_start - n
    rows, columns = (
        Scores(pad(scores.values, edges), pad(scores.computed, edges))
        for edges in ((left, right), (0, 0, above, below))
    )
    return ScoreShard(
        rows, layout.rows, columns, layout.columns, layout.row_start, layout.column_start
    )


def with_reference(
    shard: ScoreShard,
    image: Float[Tensor, "n d"],
    text: Float[Tensor, "m d"],
    scale: float,
    bias: float,
    layout: ShardLayout,
    group: ProcessGroup,
) -> ScoreShard:
    """Adds the scores of the frozen backbone itself.

    Args:
        shard: The shard.
        image: The backbone's embeddings of the images of the rank's batch.
        text: The backbone's embeddings of the texts of the rank's batch.
        scale: Factor on cosines.
        bias: Term added to them.
        layout: The position of images and texts among those of all ranks.
        group: All ranks.
    """
    image, text = normalize(image, dim=-1), normalize(text[layout.texts], dim=-1)
    rows = scale * image @ group.gather(text).transpose(0, 1) + bias
    if group.size == 1:
        scores = replace(shard.rows, reference=rows)
        return replace(shard, rows=scores, columns=scores)
    columns = scale * group.gather(image) @ text.transpose(0, 1) + bias
    return replace(
        shard,
        rows=replace(shard.rows, reference=rows),
        columns=replace(shard.columns, reference=columns),
    )


def gather_all(shard: ScoreShard, group: ProcessGroup) -> tuple[Scores, Targets]:
    """Returns the N x M scores and targets, for objectives that need the full matrix."""
    rows, targets = shard.rows, shard.row_targets
    if group.size == 1:
        return rows, targets
    embedded = rows.embedded
    if embedded is not None and shard.columns.embedded is not None:
        images = shard.columns.embedded
        embedded = replace(embedded, image=images.image, image_tokens=images.image_tokens)
    scores = Scores(
        group.gather(rows.values),
        group.gather(rows.computed),
        embedded,
        None if rows.reference is None else group.gather(rows.reference),
    )
    return scores, targets.map(group.gather)


def local_scores(shard: ScoreShard) -> tuple[Scores, Targets]:
    """Returns the scores and targets of the rank's images against its own texts."""
    columns = slice(shard.column_start, shard.column_start + shard.columns.values.shape[1])
    rows, targets = shard.rows, shard.row_targets
    embedded = rows.embedded
    if embedded is not None and shard.columns.embedded is not None:
        texts = shard.columns.embedded
        embedded = replace(embedded, text=texts.text, text_tokens=texts.text_tokens)
    scores = Scores(
        rows.values[:, columns],
        rows.computed[:, columns],
        embedded,
        None if rows.reference is None else rows.reference[:, columns],
    )
    return scores, targets.map(lambda part: part[:, columns])
