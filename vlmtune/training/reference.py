"""The frozen backbone's own scores of a training batch, to choose pairs by and for objectives.

In: batches. Out: scores by the embeddings of the frozen backbone. Never: a gradient.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.features.store_key import Modality
from vlmtune.training.batch_features import BatchFeatures
from vlmtune.training.needs import POOLED
from vlmtune.training.score_shards import TrainingShard, with_reference
from vlmtune.types import Batch, Features


class Reference(BatchFeatures):
    """Batches as the frozen backbone itself embeds and scores them."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone, POOLED, POOLED)

    @torch.no_grad()
    def scores(self, batch: Batch, chunk: int | None) -> Float[Tensor, "n m"]:
        """Returns the scores of a rank's images and texts."""
        image, text = self.encode_both(batch, chunk, {})
        images = normalize(image.values, dim=-1)
        texts = normalize(text.values, dim=-1)
        return self.backbone.logit_scale * images @ texts.T + self.backbone.logit_bias

    @torch.no_grad()
    def add(
        self,
        shard: TrainingShard,
        batch: Batch,
        known: Mapping[Modality, Features],
        chunk: int | None,
        group: ProcessGroup,
    ) -> TrainingShard:
        """Returns the scores with the frozen backbone's scores beside them.

        `known` are the features of this backbone that have been computed already.
        """
        image, text = self.encode_both(batch, chunk, known)
        scale = self.backbone.logit_scale
        bias = self.backbone.logit_bias
        return with_reference(shard, image.values, text.values, scale, bias, group)
