"""Scores a training batch: features, embeddings or pairs, then the rank's `ScoreShard`.

In: a batch. Out: a `ScoreShard`, with the gradients of what is trained.
Never: a loss.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.features.store_key import Modality, StoreDType
from vlmtune.objectives.base import Need
from vlmtune.pairs.base import PairPolicy
from vlmtune.training.batch_features import BatchFeatures, CorpusContent
from vlmtune.training.contrast import Contrast, contrastive_scores
from vlmtune.training.needs import check_mined, check_pairs, contrast_of
from vlmtune.training.recompute import in_chunks
from vlmtune.training.reference import Reference
from vlmtune.training.score_shards import (
    Embeddings,
    dual_score_shard,
    joint_score_shard,
    with_phrases,
)
from vlmtune.training.shard_layout import ShardLayout, shard_layout
from vlmtune.types import Batch, Features, Pooled, PooledTokens, ScoreShard

if TYPE_CHECKING:  # most runs have no teacher
    from vlmtune.training.average_teacher import AverageTeacher
    from vlmtune.training.teacher import Teacher


class TrainingScores:
    """Scores batches with a backbone and an adapter, and attaches the adapter."""

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        pairs: PairPolicy,
        needs: Collection[Need] = (),
        chunk: int | None = None,
        teacher: "Teacher | None" = None,
    ) -> None:
        self.contrast = contrast_of(adapter)
        if adapter.joint and pairs.needs_reference and self.contrast is None:
            check_pairs(pairs, backbone)
            needs = {*needs, "reference"}
        # The reference needs the backbone as it was. It is copied before the adapter may unfreeze
        # or wrap weights, and the copy is dropped if the adapter does neither.
        original = None
        if "reference" in needs:
            original = copy.deepcopy(backbone).requires_grad_(False)
        adapter.attach(backbone)
        # An adapter may train weights of the backbone, directly or by way of its features.
        inputs_frozen = adapter.image_input.frozen and adapter.text_input.frozen
        trains_backbone = any(parameter.requires_grad for parameter in backbone.parameters())
        if inputs_frozen and not trains_backbone:
            original = None
        self.original = original
        self.inputs = BatchFeatures(backbone, adapter.image_input, adapter.text_input)
        self.reference = Reference(original or backbone)
        self.adapter = adapter
        self.pairs = pairs
        self.needs = needs
        self.chunk = chunk
        self.teacher = teacher  # another trained model, which scores the batch too
        self.average: AverageTeacher | None = None  # a moving average of what is trained

    def open(self, root: Path, corpus: CorpusContent, fingerprint: str, dtype: StoreDType) -> None:
        """Opens the stores of all features that are frozen, building those that are missing."""
        self.inputs.open(root, corpus, fingerprint, dtype)
        needs_pixels = False
        if self.teacher is not None:
            self.teacher.open(root, corpus, dtype)
            needs_pixels = self.teacher.features.images is None
        if self.inputs.images is not None and not needs_pixels:
            corpus.use_stored_images(self.inputs.images)
        if "reference" in self.needs:
            self.reference.open(root, corpus, fingerprint, dtype)

    def shard(self, batch: Batch, group: ProcessGroup, generator: torch.Generator) -> ScoreShard:
        """Scores this rank's shard of the batch of all ranks."""
        if batch.token_ids is not None:
            self.inputs.backbone.use_tokens(batch.texts, batch.token_ids)
        layout = shard_layout(batch, group, merged=not self.adapter.joint)
        # A joint adapter may have contrastive scores besides. Of a dual adapter the reference uses
        # frozen features again.
        contrast: Contrast | None = None
        features: dict[Modality, Features] = {}
        if isinstance(self.adapter, DualAdapter):
            shard = self._dual_shard(self.adapter, batch, layout, group, features)
        else:
            shard, contrast = self._joint_shard(batch, layout, group, generator)
        self.scored = shard.rows.computed.sum()  # pairs of this rank, for the run's monitor
        if self.teacher is not None:
            shard = self.teacher.add(shard, contrast, batch, self.chunk, layout, group)
        if self.average is not None:
            shard = self.average.add(shard, batch, features, self.chunk, layout, group)
        if "reference" not in self.needs:
            return shard
        if self.original is not None:
            features = {}  # of the trained backbone, not of the reference
        return self.reference.add(shard, contrast, batch, features, self.chunk, layout, group)

    def _dual_shard(
        self,
        adapter: DualAdapter,
        batch: Batch,
        layout: ShardLayout,
        group: ProcessGroup,
        features: dict[Modality, Features],
    ) -> ScoreShard:
        """Scores all pairs by their embeddings; `features` gets those that are frozen."""
        tokens = "tokens" in self.needs
        image = self._embed("image", batch, features, tokens)
        text = self._embed("text", batch, features, tokens)
        shard = dual_score_shard(adapter, image, text, layout, group)
        if batch.phrases is None or "phrases" not in self.needs:
            return shard
        # Towers do not run without rows, and FSDP2 needs them to run on every rank.
        texts = batch.phrases.texts or batch.texts[:1]
        phrases = self._embed("text", replace(batch.phrases, texts=texts), {}, tokens=False)
        phrases = phrases[: len(batch.phrases.texts)]
        assert isinstance(phrases, Pooled)
        # Phrases are texts of their own, so they have their own columns.
        phrase_layout = shard_layout(batch.phrases, group, merged=True)
        return with_phrases(adapter, shard, phrases, phrase_layout, group)

    def _joint_shard(
        self, batch: Batch, layout: ShardLayout, group: ProcessGroup, generator: torch.Generator
    ) -> tuple[ScoreShard, Contrast | None]:
        """Scores chosen pairs of the rank's own batch."""
        image = self.inputs.encode_batch("image", batch, self.chunk)
        text = self.inputs.encode_batch("text", batch, self.chunk)
        # Contrastive scores come first, as pairs may be chosen by them.
        contrast = contrastive_scores(self.contrast, image, text, self.chunk, batch, group)
        pairs = None
        if self.adapter.joint:
            pairs = self._choose_pairs(batch, generator, contrast)
        scores = self.adapter(image, text, pairs)
        # Under autocast some heads score in half precision, which would round losses.
        dtype = torch.promote_types(scores.values.dtype, torch.float32)
        scores = replace(scores, values=scores.values.to(dtype))
        shard = joint_score_shard(scores, layout, group)
        if contrast is not None:
            shard = replace(shard, contrast=contrast.shard)
        return shard, contrast

    def _choose_pairs(
        self, batch: Batch, generator: torch.Generator, contrast: Contrast | None
    ) -> Tensor:
        """Chooses pairs of the rank's batch, by contrastive scores if there are any.

        On the CPU, which needs their number; only a policy that ranks by scores waits for a GPU.
        """
        targets = batch.targets.on_cpu()
        if self.adapter.training:  # validation batches have no mined neighbours
            check_mined(self.pairs, targets)
        if not self.pairs.needs_reference:
            return self.pairs(targets, generator)
        if contrast is not None:
            return self.pairs(targets, generator, contrast.local.cpu())
        reference = self.reference.scores(batch, self.chunk)
        return self.pairs(targets, generator, reference.cpu())

    def _embed(
        self, side: Modality, batch: Batch, features: dict[Modality, Features], tokens: bool
    ) -> Embeddings:
        """Embeds one side, with its tokens where `tokens` is set; notes frozen features."""
        embed = self._embedder(side, tokens)
        if self.inputs.specs[side].frozen:
            # A frozen backbone has no activations to recompute, only the adapter has.
            frozen = self.inputs.encode_batch(side, batch, self.chunk)
            features[side] = frozen
            count = len(frozen)
            rows_of = frozen.__getitem__
        else:
            # The backbone runs within a chunk, so that its activations are freed with it.
            count = len(batch.image_ids) if side == "image" else len(batch.texts)
            rows_of = partial(self.inputs.encode_rows, side, batch)

        def embed_rows(rows: slice) -> Embeddings:
            return embed(rows_of(rows))

        return in_chunks(embed_rows, count, self.chunk, self.inputs.backbone.device)

    def _embedder(self, side: Modality, tokens: bool) -> Callable[[Features], Embeddings]:
        adapter: Any = self.adapter
        embed = adapter.embed_image if side == "image" else adapter.embed_text
        if not tokens:
            return lambda features: Pooled(embed(features))
        each = adapter.embed_patches if side == "image" else adapter.embed_words
        return lambda features: PooledTokens(embed(features), each(features))
