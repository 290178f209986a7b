"""The frozen backbone's own scores of a training batch, to choose pairs by and for objectives.

In: batches. Out: scores by the embeddings of the frozen backbone. Never: a gradient.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.features.store_key import Modality
from vlmtune.training.batch_features import BatchFeatures
from vlmtune.training.contrast import Contrast
from vlmtune.training.needs import POOLED
from vlmtune.training.score_shards import with_reference
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.types import Batch, Features, Pooled, ScoreShard


class Reference(BatchFeatures):
    """Batches as the frozen backbone itself embeds and scores them."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone, POOLED, POOLED)

    @torch.no_grad()
    def scores(self, batch: Batch, chunk: int | None) -> Float[Tensor, "n m"]:
        """Returns the scores of a rank's images and texts."""
        image, text = self._embeddings(batch, chunk, {})
        image = normalize(image, dim=-1)
        text = normalize(text, dim=-1)
        return self.backbone.logit_scale * image @ text.T + self.backbone.logit_bias

    @torch.no_grad()
    def add(
        self,
        shard: ScoreShard,
        contrast: Contrast | None,
        batch: Batch,
        features: Mapping[Modality, Features],
        chunk: int | None,
        layout: ShardLayout,
        group: ProcessGroup,
    ) -> ScoreShard:
        """Returns the scores with the frozen backbone's scores beside them.

        `features` are the features of this backbone that have been computed already.
        """
        image, text = self._embeddings(batch, chunk, features)
        scale = self.backbone.logit_scale
        bias = self.backbone.logit_bias
        if contrast is not None:
            # Contrastive scores have other columns than matching scores.
            contrast_shard = with_reference(
                contrast.shard, image, text, scale, bias, contrast.layout, group
            )
            shard = replace(shard, contrast=contrast_shard)
        return with_reference(shard, image, text, scale, bias, layout, group)

    def _embeddings(
        self, batch: Batch, chunk: int | None, features: Mapping[Modality, Features]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "m d"]]:
        image = features.get("image")
        if not isinstance(image, Pooled):
            image = self.encode_batch("image", batch, chunk)
        text = features.get("text")
        if not isinstance(text, Pooled):
            text = self.encode_batch("text", batch, chunk)
        assert isinstance(image, Pooled)
        assert isinstance(text, Pooled)
        return image.values, text.values
