"""Cuts and gathers scores over ranks: one rank's `ScoreShard`, or the full matrix.

In: embeddings or scores of this rank's batch, and its `ShardLayout`. Out: a `ScoreShard`.
Never: scores over the network if embeddings are enough; memory grows with N, not with its square.
"""

from collections.abc import Callable
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize, pad

from vlmtune.adapters.base import DualAdapter, inner_products
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.types import (
    Embedded,
    PhraseScores,
    Pooled,
    PooledTokens,
    Scores,
    ScoreShard,
    Targets,
)

Embeddings = Pooled | PooledTokens


def dual_score_shard(
    adapter: DualAdapter,
    image: Embeddings,
    text: Embeddings,
    layout: ShardLayout,
    group: ProcessGroup,
) -> ScoreShard:
    """Scores the rank's images against all texts, and all images against the rank's texts."""
    if group.size == 1:
        scores = _scores(adapter, image, text)
        return ScoreShard(scores, layout.rows, scores, layout.columns)
    # A text of several ranks is a column of the first alone, so that it counts once.
    text = text[layout.texts]
    all_images = group.gather(image, layout.image_counts)
    all_texts = group.gather(text, layout.text_counts)
    return ScoreShard(
        _scores(adapter, image, all_texts),
        layout.rows,
        _scores(adapter, all_images, text),
        layout.columns,
        layout.row_start,
        layout.column_start,
    )


def _scores(adapter: DualAdapter, image: Embeddings, text: Embeddings) -> Scores:
    if isinstance(image, Pooled) or isinstance(text, Pooled):
        assert isinstance(image, Pooled)
        assert isinstance(text, Pooled)
        return adapter.scores(image.values, text.values)
    scores = adapter.scores(image.pooled, text.pooled)
    assert scores.embedded is not None
    # Objectives over tokens find them where they find embeddings.
    embedded = replace(scores.embedded, image_tokens=image.tokens, text_tokens=text.tokens)
    return replace(scores, embedded=embedded)


def joint_score_shard(scores: Scores, layout: ShardLayout, group: ProcessGroup) -> ScoreShard:
    """Pads the scores of a rank's own pairs to the size of all ranks; other pairs have no score."""
    if group.size == 1:
        return ScoreShard(scores, layout.rows, scores, layout.columns)
    n, m = scores.values.shape
    # The rank's own block of pairs lies within its strip of rows and its strip of columns.
    left = layout.column_start
    right = layout.rows.truth.shape[1] - left - m
    above = layout.row_start
    below = layout.columns.truth.shape[0] - above - n
    return ScoreShard(
        _padded(scores, (left, right)),
        layout.rows,
        _padded(scores, (0, 0, above, below)),
        layout.columns,
        layout.row_start,
        layout.column_start,
    )


def _padded(scores: Scores, edges: tuple[int, ...]) -> Scores:
    """Adds pairs without a score; `edges` are as in `torch.nn.functional.pad`."""
    values = pad(scores.values, edges)
    computed = pad(scores.computed, edges)
    known = pad(scores.cpu_computed, edges)
    return Scores(values, computed, noted_computed=known)


def with_reference(
    shard: ScoreShard,
    image: Float[Tensor, "n d"],
    text: Float[Tensor, "m d"],
    scale: float,
    bias: float,
    layout: ShardLayout,
    group: ProcessGroup,
) -> ScoreShard:
    """Adds the scores of the frozen backbone itself."""
    # Gathered after they are normalised, so that each rank normalises only its own.
    image = normalize(image, dim=-1)
    text = normalize(text[layout.texts], dim=-1)
    all_texts = group.gather(text, layout.text_counts)
    scaled = scale * inner_products(image, all_texts)
    rows = replace(shard.rows, reference=scaled + bias)
    # On one rank rows and columns are the same matrix.
    if group.size == 1:
        return replace(shard, rows=rows, columns=rows)
    all_images = group.gather(image, layout.image_counts)
    scaled = scale * inner_products(all_images, text)
    columns = replace(shard.columns, reference=scaled + bias)
    return replace(shard, rows=rows, columns=columns)


def with_phrases(
    adapter: DualAdapter,
    shard: ScoreShard,
    phrases: Pooled,
    layout: ShardLayout,
    group: ProcessGroup,
) -> ScoreShard:
    """Adds the scores of the rank's images against the phrases of all ranks, to its rows alone."""
    assert shard.rows.embedded is not None
    # A phrase of several ranks is a column of the first alone, so that it counts once.
    rank_phrases = phrases[layout.texts]
    all_phrases = group.gather(rank_phrases, layout.text_counts)
    scores = adapter.scores(shard.rows.embedded.image, all_phrases.values)
    assert scores.embedded is not None
    truth = layout.rows.truth
    foils = layout.rows.same_group & ~truth
    phrase_scores = PhraseScores(scores.values, truth, scores.embedded.text, foils)
    rows = replace(shard.rows, phrases=phrase_scores)
    return replace(shard, rows=rows)


def gather_all(shard: ScoreShard, group: ProcessGroup) -> tuple[Scores, Targets]:
    """Returns the N x M scores and targets, for objectives that need the full matrix."""
    rows = shard.rows
    if group.size == 1:
        return rows, shard.row_targets
    embedded = rows.embedded
    if embedded is not None and shard.columns.embedded is not None:
        # The columns know the embeddings of all images, the rows those of all texts.
        images = shard.columns.embedded
        embedded = replace(embedded, image=images.image, image_tokens=images.image_tokens)
    return _changed(rows, embedded, group.gather), shard.row_targets.map(group.gather)


def local_scores(shard: ScoreShard) -> tuple[Scores, Targets]:
    """Returns the scores and targets of the rank's images against its own texts."""
    start = shard.column_start
    stop = start + shard.columns.values.shape[1]
    rows = shard.rows
    embedded = rows.embedded
    if embedded is not None and shard.columns.embedded is not None:
        # The columns know the rank's own texts, the rows all texts.
        texts = shard.columns.embedded
        embedded = replace(embedded, text=texts.text, text_tokens=texts.text_tokens)

    def within(matrix: Tensor) -> Tensor:
        return matrix[:, start:stop]

    # Diagnostics read targets on the CPU, too, where they are known.
    source = shard.row_targets.on_cpu().map(within)
    return _changed(rows, embedded, within), replace(shard.row_targets.map(within), source=source)


def _changed(
    scores: Scores, embedded: Embedded | None, change: Callable[[Tensor], Tensor]
) -> Scores:
    """The scores with `change` applied to each matrix, and with these embeddings."""
    reference = scores.reference
    if reference is not None:
        reference = change(reference)
    teacher = scores.teacher
    if teacher is not None:
        teacher = Scores(change(teacher.values), change(teacher.computed))
    return Scores(change(scores.values), change(scores.computed), embedded, reference, teacher)
