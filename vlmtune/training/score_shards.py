"""A rank's share of the scores of all ranks, and the whole of them."""

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
    place: ShardLayout,
    ranks: ProcessGroup,
) -> ScoreShard:
    """Scores the rank's images against all texts and all images against its texts.

    Embeddings travel, scores do not, so memory grows with N and not with its square.

    Args:
        adapter: What compares embeddings.
        image: Embeddings of the n images of the rank's batch, with tokens where there are any.
        text: Embeddings of the texts of the rank's batch, likewise.
        place: Where they are among those of all ranks.
        ranks: All ranks.
    """
    if ranks.size == 1:
        both = _scores(adapter, image, text)
        return ScoreShard(both, place.rows, both, place.columns)
    text = text[place.texts]
    images, texts = ranks.gather(image), ranks.gather(text)
    return ScoreShard(
        _scores(adapter, image, texts),
        place.rows,
        _scores(adapter, images, text),
        place.columns,
        place.row_start,
        place.column_start,
    )


def _scores(adapter: DualAdapter, image: Embeddings, text: Embeddings) -> Scores:
    pooled = [side.values if isinstance(side, Pooled) else side.pooled for side in (image, text)]
    scores = adapter.scores(*pooled)
    if isinstance(image, Pooled) or isinstance(text, Pooled) or scores.embedded is None:
        return scores
    embedded = replace(scores.embedded, image_tokens=image.tokens, text_tokens=text.tokens)
    return replace(scores, embedded=embedded)


def joint_score_shard(scores: Scores, place: ShardLayout, ranks: ProcessGroup) -> ScoreShard:
    """Puts the scores of a rank's own pairs where they belong; those across ranks do not exist.

    Args:
        scores: Scores of the n images of the rank's batch against its m texts.
        place: Where they are among those of all ranks, which share no column.
        ranks: All ranks.
    """
    if ranks.size == 1:
        return ScoreShard(scores, place.rows, scores, place.columns)
    n, m = scores.values.shape
    left, right = place.column_start, place.rows.truth.shape[1] - place.column_start - m
    above, below = place.row_start, place.columns.truth.shape[0] - place.row_start - n
    rows, columns = (
        Scores(pad(scores.values, edges), pad(scores.computed, edges))
        for edges in ((left, right), (0, 0, above, below))
    )
    return ScoreShard(rows, place.rows, columns, place.columns, place.row_start, place.column_start)


def with_reference(
    share: ScoreShard,
    image: Float[Tensor, "n d"],
    text: Float[Tensor, "texts d"],
    scale: float,
    bias: float,
    place: ShardLayout,
    ranks: ProcessGroup,
) -> ScoreShard:
    """Adds the scores of the frozen backbone.

    Args:
        share: The rank's share.
        image: The backbone's embeddings of the images of the rank's batch.
        text: The backbone's embeddings of the texts of the rank's batch.
        scale: Factor on cosines.
        bias: Term added to them.
        place: Where images and texts are among those of all ranks.
        ranks: All ranks.
    """
    image, text = normalize(image, dim=-1), normalize(text[place.texts], dim=-1)
    rows = scale * image @ ranks.gather(text).transpose(0, 1) + bias
    if ranks.size == 1:
        both = replace(share.rows, reference=rows)
        return replace(share, rows=both, columns=both)
    columns = scale * ranks.gather(image) @ text.transpose(0, 1) + bias
    return replace(
        share,
        rows=replace(share.rows, reference=rows),
        columns=replace(share.columns, reference=columns),
    )


def whole(share: ScoreShard, ranks: ProcessGroup) -> tuple[Scores, Targets]:
    """Returns the N x M scores and what is true, for objectives that cannot be shared."""
    rows, targets = share.rows, share.row_targets
    if ranks.size == 1:
        return rows, targets
    embedded = rows.embedded
    if embedded is not None and share.columns.embedded is not None:
        images = share.columns.embedded
        embedded = replace(embedded, image=images.image, image_tokens=images.image_tokens)
    scores = Scores(
        ranks.gather(rows.values),
        ranks.gather(rows.computed),
        embedded,
        None if rows.reference is None else ranks.gather(rows.reference),
    )
    return scores, targets.map(ranks.gather)


def local_scores(share: ScoreShard) -> tuple[Scores, Targets]:
    """Returns the scores of the rank's images against its own texts, and what is true there."""
    start, stop = share.column_start, share.column_start + share.columns.values.shape[1]
    rows, targets = share.rows, share.row_targets
    embedded = rows.embedded
    if embedded is not None and share.columns.embedded is not None:
        texts = share.columns.embedded
        embedded = replace(embedded, text=texts.text, text_tokens=texts.text_tokens)
    scores = Scores(
        rows.values[:, start:stop],
        rows.computed[:, start:stop],
        embedded,
        None if rows.reference is None else rows.reference[:, start:stop],
    )
    return scores, targets.map(lambda part: part[:, start:stop])
