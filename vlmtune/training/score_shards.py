"""Cuts and gathers scores over ranks: one rank's `ScoreShard`, or the full matrix.

In: embeddings or scores of this rank's batch, and its `ShardLayout`. Out: a `ScoreShard`.
Never: scores over the network if embeddings are enough; memory grows with N, not with its square.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from vlmtune.adapters.base import DualAdapter, full_precision, inner_products, unit
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


@dataclass(frozen=True)
class TrainingShard(ScoreShard):
    """A `ScoreShard`, and where its rows and columns lie among those of all ranks."""

    layout: ShardLayout = field(kw_only=True)
    contrast: "TrainingShard | None" = None


def dual_score_shard(
    adapter: DualAdapter,
    image: Embeddings,
    text: Embeddings,
    layout: ShardLayout,
    group: ProcessGroup,
) -> TrainingShard:
    """Scores the rank's images against all texts, and all images against the rank's texts."""
    if group.size == 1:
        scores = _scores(adapter, image, text)
        return _shard(scores, scores, layout)
    # A text of several ranks is a column of the first alone, so that it counts once.
    text = text[layout.texts]
    all_images = group.gather(image, layout.image_counts)
    all_texts = group.gather(text, layout.text_counts)
    rows = _scores(adapter, image, all_texts)
    columns = _scores(adapter, all_images, text)
    return _shard(rows, columns, layout)


def _shard(rows: Scores, columns: Scores, layout: ShardLayout) -> TrainingShard:
    return TrainingShard(
        rows,
        layout.row_targets,
        columns,
        layout.column_targets,
        layout.row_start,
        layout.column_start,
        layout=layout,
    )


def _scores(adapter: DualAdapter, image: Embeddings, text: Embeddings) -> Scores:
    if isinstance(image, Pooled) or isinstance(text, Pooled):
        assert isinstance(image, Pooled)
        assert isinstance(text, Pooled)
        return adapter.scores(image.values, text.values)
    scores = adapter.scores(image.pooled, text.pooled)
    assert scores.embedded is not None
    # Objectives over tokens find them where they find embeddings.
    patches = image.tokens.with_values(full_precision(image.tokens.values))
    words = text.tokens.with_values(full_precision(text.tokens.values))
    embedded = replace(scores.embedded, image_tokens=patches, text_tokens=words)
    return replace(scores, embedded=embedded)


def joint_score_shard(scores: Scores, layout: ShardLayout, group: ProcessGroup) -> TrainingShard:
    """Pads the scores of a rank's own pairs to the size of all ranks; other pairs have no score."""
    if group.size == 1:
        return _shard(scores, scores, layout)
    n, m = scores.values.shape
    # The rank's own block of pairs lies within its strip of rows and its strip of columns.
    left = layout.column_start
    right = layout.row_targets.truth.shape[1] - left - m
    above = layout.row_start
    below = layout.column_targets.truth.shape[0] - above - n
    rows = _padded(scores, (left, right))
    columns = _padded(scores, (0, 0, above, below))
    return _shard(rows, columns, layout)


def _padded(scores: Scores, edges: tuple[int, ...]) -> Scores:
    """Adds pairs without a score; `edges` are as in `torch.nn.functional.pad`."""
    values = pad(scores.values, edges)
    computed = pad(scores.computed, edges)
    known = pad(scores.cpu_computed, edges)
    return Scores(values, computed, noted_computed=known)


def with_reference(
    shard: TrainingShard,
    image: Float[Tensor, "n d"],
    text: Float[Tensor, "m d"],
    scale: float,
    bias: float,
    group: ProcessGroup,
) -> TrainingShard:
    """Adds the scores of the frozen backbone itself."""
    if shard.contrast is not None:
        contrast = with_reference(shard.contrast, image, text, scale, bias, group)
        shard = replace(shard, contrast=contrast)
    layout = shard.layout
    # Gathered after they are normalised, so that each rank normalises only its own.
    image = unit(image)
    text = unit(text[layout.texts])
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
    shard: TrainingShard,
    phrases: Pooled,
    layout: ShardLayout,
    group: ProcessGroup,
) -> TrainingShard:
    """Adds the scores of the rank's images against the phrases of all ranks, to its rows alone."""
    assert shard.rows.embedded is not None
    # A phrase of several ranks is a column of the first alone, so that it counts once.
    rank_phrases = phrases[layout.texts]
    all_phrases = group.gather(rank_phrases, layout.text_counts)
    scores = adapter.scores(shard.rows.embedded.image, all_phrases.values)
    assert scores.embedded is not None
    truth = layout.row_targets.truth
    foils = layout.row_targets.same_group & ~truth
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
