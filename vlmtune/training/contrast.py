"""The contrastive scores of a training batch beside its matching scores.

In: the features of a batch and the contrastive side of a joint adapter. Out: scores of all pairs.
Never: matching scores.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vlmtune.adapters.base import DualAdapter
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.recompute import in_chunks
from vlmtune.training.score_shards import dual_score_shard
from vlmtune.training.shard_layout import ShardLayout, shard_layout
from vlmtune.types import Batch, Features, Pooled, ScoreShard


@dataclass(frozen=True)
class Contrast:
    """The contrastive scores of a batch."""

    shard: ScoreShard  # of this rank, with gradients
    layout: ShardLayout  # a caption of several ranks is one column, unlike in matching scores
    local: Float[Tensor, "n m"]  # of the rank's own batch, without gradients, to choose pairs by


def contrastive_scores(
    adapter: DualAdapter | None,
    image: Features,
    text: Features,
    chunk: int | None,
    batch: Batch,
    group: ProcessGroup,
) -> Contrast | None:
    """Scores the images of this rank against the texts of all ranks, and the other way round."""
    if adapter is None:
        return None

    def embed_image(rows: slice) -> Pooled:
        values = adapter.embed_image(image[rows])
        return Pooled(values)

    def embed_text(rows: slice) -> Pooled:
        values = adapter.embed_text(text[rows])
        return Pooled(values)

    # Chunks free the activations of the towers' ends, as for a dual adapter.
    images = in_chunks(embed_image, len(image), chunk, image.device)
    texts = in_chunks(embed_text, len(text), chunk, text.device)
    layout = shard_layout(batch, group, merged=True)
    # Pairs are chosen within the rank, and choosing has no gradient.
    with torch.no_grad():
        local = adapter.compare(images.values, texts.values)
    shard = dual_score_shard(adapter, images, texts, layout, group)
    return Contrast(shard, layout, local)
