"""Scores a training batch: features, embeddings or pairs, then the rank's `ScoreShard`.

In: a batch and its `ShardLayout`. Out: a `ScoreShard`, with the gradients of what is trained.
Never: a loss.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.features.store_key import Modality
from vlmtune.objectives.base import Need
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.batch_features import BatchFeatures
from vlmtune.training.contrast import Contrast, contrastive_scores
from vlmtune.training.needs import check_mined, check_pairs, contrast_of
from vlmtune.training.recompute import in_chunks
from vlmtune.training.reference import Reference
from vlmtune.training.score_shards import (
    Embeddings,
    dual_score_shard,
    joint_score_shard,
)
from vlmtune.training.shard_layout import ShardLayout
from vlmtune.types import Batch, Features, Pooled, PooledTokens, ScoreShard

SIDES: tuple[Modality, Modality] = ("image", "text")


class TrainingScores:
    """Scores batches with a backbone and an adapter, and attaches the adapter.

    Args:
        backbone: The pre-trained model.
        adapter: The trained part.
        pairs: Which pairs a joint adapter scores.
        needs: Inputs of objectives beside scores; pairs may need the reference too.
        chunk: How many images or texts are embedded at a time (see `recompute`); None for all.

    Attributes:
        inputs: The features the adapter reads.
        reference: The frozen backbone's own pooled embeddings.
        original: A frozen copy of the backbone, if the reference is needed and training changes
            the backbone.

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
        self.contrast = contrast_of(adapter)
        if adapter.joint and pairs.needs_reference and self.contrast is None:
            check_pairs(pairs, backbone)
            needs = {*needs, "reference"}
        spare = copy.deepcopy(backbone).requires_grad_(False) if "reference" in needs else None
        adapter.attach(backbone)
        specs = (adapter.image_input, adapter.text_input)
        changes = not all(spec.frozen for spec in specs)
        changes = changes or any(p.requires_grad for p in backbone.parameters())
        self.original = spare if changes else None
        self.inputs = BatchFeatures(backbone, *specs)
        self.reference = Reference(self.original or backbone)
        self.adapter, self.pairs, self.needs, self.chunk = adapter, pairs, needs, chunk

    def shard(
        self, batch: Batch, layout: ShardLayout, group: ProcessGroup, generator: torch.Generator
    ) -> ScoreShard:
        """Scores this rank's shard of the batch of all ranks.

        Args:
            batch: The rank's own batch.
            layout: Its position among the batches of all ranks.
            group: All ranks.
            generator: Draws the pairs.
        """
        computed: dict[Modality, Features] = {}
        contrast: Contrast | None = None
        if isinstance(self.adapter, DualAdapter):
            image, text = (self._embed(side, batch, computed) for side in SIDES)
            shard = dual_score_shard(self.adapter, image, text, layout, group)
        else:
            image, text = (self.inputs.encode_batch(side, batch, self.chunk) for side in SIDES)
            contrast = contrastive_scores(self.contrast, image, text, self.chunk, batch, group)
            pairs = self._choose_pairs(batch, generator, contrast) if self.adapter.joint else None
            shard = joint_score_shard(self.adapter(image, text, pairs), layout, group)
            shard = replace(shard, contrast=contrast and contrast.shard)
        self.scored = shard.rows.computed.sum()  # pairs of this rank, for the run's monitor
        if "reference" not in self.needs:
            return shard
        known = computed if self.original is None else {}
        return self.reference.add(shard, contrast, batch, known, self.chunk, layout, group)

    def _choose_pairs(self, batch: Batch, chance: torch.Generator, ends: Contrast | None) -> Tensor:
        if self.adapter.training:  # validation batches have no mined neighbours
            check_mined(self.pairs, batch.targets)
        if not self.pairs.needs_reference:
            return self.pairs(batch.targets, chance)
        hard = self.reference.scores(batch, self.chunk) if ends is None else ends.local
        return self.pairs(batch.targets, chance, hard)

    def _embed(
        self, side: Modality, batch: Batch, computed: dict[Modality, Features]
    ) -> Embeddings:
        """Embeds one side, with tokens if an objective needs them; notes frozen features."""
        embed, device = self._embedder(side), self.inputs.backbone.device
        if not self.inputs.specs[side].frozen:
            rows = len(batch.image_ids if side == "image" else batch.texts)
            encode = partial(self.inputs.encode_rows, side, batch)
            return in_chunks(lambda part: embed(encode(part)), rows, self.chunk, device)
        # A frozen backbone has no activations to recompute, only the adapter has.
        computed[side] = features = self.inputs.encode_batch(side, batch, self.chunk)
        return in_chunks(lambda part: embed(features[part]), len(features), self.chunk, device)

    def _embedder(self, side: Modality) -> Callable[[Features], Embeddings]:
        adapter = self.adapter
        assert isinstance(adapter, DualAdapter)
        embed = adapter.embed_image if side == "image" else adapter.embed_text
        if "tokens" not in self.needs:
            return lambda features: Pooled(embed(features))
        tokens: Any = adapter.embed_patches if side == "image" else adapter.embed_words
        return lambda features: PooledTokens(embed(features), tokens(features))
