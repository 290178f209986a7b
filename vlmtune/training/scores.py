"""From a batch to a rank's share of the scores of all ranks: features, embeddings, comparison."""

import copy
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Need
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.inputs import Inputs, Modality
from vlmtune.training.needs import POOLED, check_mined, check_pairs
from vlmtune.training.recompute import in_chunks
from vlmtune.training.score_shards import (
    Embeddings,
    dual_score_shard,
    joint_score_shard,
    with_reference,
)
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.types import Batch, Features, Pooled, PooledTokens, ScoreShard

SIDES: tuple[Modality, Modality] = ("image", "text")


class TrainingScores:
    """Scores batches with a backbone and an adapter, which is attached here.

    Args:
        backbone: The pre-trained model.
        adapter: What is trained on it.
        pairs: Which pairs a joint adapter scores.
        needs: What objectives read beside scores; pairs may need the backbone's own scores too.
        chunk: How many images or texts are embedded at a time (see `recompute`); None for all.

    Attributes:
        inputs: The features the adapter reads.
        reference: The frozen backbone's own pooled embeddings.
        original: A copy of the backbone as it was, where those are needed and training changes it.

    Raises:
        UserError: The backbone lacks what the adapter or the choice of pairs reads.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        pairs: PairPolicy,
        needs: Collection[Need] = (),
        chunk: int | None = None,
    ) -> None:
        if adapter.joint and pairs.needs_reference:
            check_pairs(pairs, backbone)
            needs = {*needs, "reference"}
        spare = copy.deepcopy(backbone).requires_grad_(False) if "reference" in needs else None
        adapter.attach(backbone)
        reads = (adapter.image_input, adapter.text_input)
        changes = not all(one.frozen for one in reads)
        changes = changes or any(p.requires_grad for p in backbone.parameters())
        self.original = spare if changes else None
        self.inputs = Inputs(backbone, *reads)
        self.reference = Inputs(self.original or backbone, POOLED, POOLED)
        self.adapter, self.pairs, self.needs, self.chunk = adapter, pairs, needs, chunk

    def share(
        self, batch: Batch, where: ShardLayout, ranks: ProcessGroup, generator: torch.Generator
    ) -> ScoreShard:
        """Scores this rank's share of the batch of all ranks.

        Args:
            batch: The rank's own part.
            where: Its place in the whole.
            ranks: Who takes part.
            generator: What pairs are drawn with.
        """
        kept: dict[Modality, Features] = {}
        if isinstance(self.adapter, DualAdapter):
            image, text = (self._embedded(side, batch, kept) for side in SIDES)
            share = dual_score_shard(self.adapter, image, text, where, ranks)
        else:
            image, text = (self.inputs.all(side, batch, self.chunk) for side in SIDES)
            pairs = self._chosen(batch, generator) if self.adapter.joint else None
            share = joint_score_shard(self.adapter(image, text, pairs), where, ranks)
        if "reference" not in self.needs:
            return share
        with torch.no_grad():
            pooled = [self._pooled(side, batch, kept) for side in SIDES]
            scale, bias = self._temperature()
            return with_reference(share, pooled[0], pooled[1], scale, bias, where, ranks)

    def _chosen(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """The pairs of the rank's own batch that are scored."""
        if self.adapter.training:  # validation has no neighbours: there others take their place
            check_mined(self.pairs, batch.targets)
        if not self.pairs.needs_reference:
            return self.pairs(batch.targets, generator)
        with torch.no_grad():
            image, text = (normalize(self._pooled(side, batch, {}), dim=-1) for side in SIDES)
            scale, bias = self._temperature()
            return self.pairs(batch.targets, generator, scale * image @ text.T + bias)

    def _temperature(self) -> tuple[float, float]:
        return self.reference.backbone.logit_scale, self.reference.backbone.logit_bias

    def _embedded(self, side: Modality, batch: Batch, kept: dict[Modality, Features]) -> Embeddings:
        """Embeds one side, with tokens where they are needed; keeps features that are frozen."""
        embed, device = self._embedder(side), self.inputs.backbone.device
        if not self.inputs.reads[side].frozen:
            rows = len(batch.image_ids if side == "image" else batch.texts)
            fresh = partial(self.inputs.some, side, batch)
            return in_chunks(lambda part: embed(fresh(part)), rows, self.chunk, device)
        # A frozen backbone has no activations to compute again, only the adapter has.
        kept[side] = features = self.inputs.all(side, batch, self.chunk)
        return in_chunks(lambda part: embed(features[part]), len(features), self.chunk, device)

    def _embedder(self, side: Modality) -> Callable[[Features], Embeddings]:
        adapter = self.adapter
        assert isinstance(adapter, DualAdapter)
        embed = adapter.embed_image if side == "image" else adapter.embed_text
        if "tokens" not in self.needs:
            return lambda features: Pooled(embed(features))
        tokens: Any = adapter.embed_patches if side == "image" else adapter.embed_words
        return lambda features: PooledTokens(embed(features), tokens(features))

    def _pooled(self, side: Modality, batch: Batch, kept: dict[Modality, Features]) -> Tensor:
        """The frozen backbone's own embeddings, taken from `kept` where they are those."""
        same = self.original is None and self.inputs.reads[side].kind == "pooled" and side in kept
        source = kept[side] if same else self.reference.all(side, batch, self.chunk)
        assert isinstance(source, Pooled)
        return source.values
