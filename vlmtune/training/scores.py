"""Scores a training batch: features, embeddings or pairs, then the rank's `ScoreShard`.

In: a batch. Out: a `ScoreShard`, with the gradients of what is trained. Never: a loss.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import replace
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
from vlmtune.training.batch_features import BatchFeatures, CorpusContent, row_count
from vlmtune.training.needs import check_mined, check_pairs, checked_mask, contrast_of
from vlmtune.training.recompute import in_chunks
from vlmtune.training.reference import Reference
from vlmtune.training.score_shards import (
    Embeddings,
    TrainingShard,
    dual_score_shard,
    joint_score_shard,
    with_phrases,
)
from vlmtune.training.shard_layout import ShardLayout, shard_layout
from vlmtune.types import Batch, Features, Pooled, PooledTokens

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
        self.features = BatchFeatures(backbone, adapter.image_input, adapter.text_input)
        self.reference = Reference(original or backbone)
        self.adapter = adapter
        self.pairs = pairs
        self.needs = needs
        self.chunk = chunk
        self.teacher = teacher  # another trained model, which scores the batch too
        self.average: AverageTeacher | None = None  # a moving average of what is trained

    def open(self, root: Path, corpus: CorpusContent, fingerprint: str, dtype: StoreDType) -> None:
        """Opens the stores of all features that are frozen, building those that are missing."""
        self.features.open(root, corpus, fingerprint, dtype)
        needs_pixels = False
        if self.teacher is not None:
            self.teacher.open(root, corpus, dtype)
            needs_pixels = self.teacher.features.images is None
        if self.features.images is not None and not needs_pixels:
            corpus.use_stored_images(self.features.images)
        if "reference" in self.needs:
            self.reference.open(root, corpus, fingerprint, dtype)

    def shard(self, batch: Batch, group: ProcessGroup, generator: torch.Generator) -> TrainingShard:
        """Scores this rank's shard of the batch of all ranks."""
        if batch.token_ids is not None:
            self.features.backbone.use_tokens(batch.texts, batch.token_ids)
        layout = shard_layout(batch, group, merged=not self.adapter.joint)
        known: dict[Modality, Features] = {}  # frozen features that others read again
        if isinstance(self.adapter, DualAdapter):
            shard = self._dual_shard(self.adapter, batch, layout, group, known)
        else:
            shard = self._joint_shard(batch, layout, group, generator)
        self.scored = shard.rows.computed.sum()  # pairs of this rank, for the run's monitor
        if self.teacher is not None:
            shard = self.teacher.add(shard, batch, self.chunk, group)
        if self.average is not None:
            shard = self.average.add(shard, batch, known, self.chunk, group)
        if "reference" not in self.needs:
            return shard
        if self.original is not None:
            known = {}  # of the trained backbone, not of the reference
        return self.reference.add(shard, batch, known, self.chunk, group)

    def _dual_shard(
        self,
        adapter: DualAdapter,
        batch: Batch,
        layout: ShardLayout,
        group: ProcessGroup,
        known: dict[Modality, Features],
    ) -> TrainingShard:
        """Scores all pairs by their embeddings; `known` gets the features that are frozen."""
        tokens = "tokens" in self.needs
        image = self._embed("image", batch, known, tokens)
        text = self._embed("text", batch, known, tokens)
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
    ) -> TrainingShard:
        """Scores chosen pairs of the rank's own batch."""
        image, text = self.features.encode_both(batch, self.chunk, {})
        # Contrastive scores come first, as pairs may be chosen by them.
        contrast = reference = pairs = None
        if self.contrast is not None:
            contrast, reference = self._contrastive(self.contrast, image, text, batch, group)
        if self.adapter.joint:
            pairs = self._choose_pairs(batch, generator, reference)
        scores = self.adapter(image, text, pairs)
        # Under autocast some heads score in half precision, which would round losses.
        dtype = torch.promote_types(scores.values.dtype, torch.float32)
        scores = replace(scores, values=scores.values.to(dtype))
        return replace(joint_score_shard(scores, layout, group), contrast=contrast)

    def _contrastive(
        self,
        adapter: DualAdapter,
        image: Features,
        text: Features,
        batch: Batch,
        group: ProcessGroup,
    ) -> tuple[TrainingShard, Tensor]:
        """Contrastive scores, and those of the rank's own batch without a gradient."""
        # Chunks free the activations of the towers' ends, as for a dual adapter.
        images = self._in_chunks(_embedder(adapter, "image"), image)
        texts = self._in_chunks(_embedder(adapter, "text"), text)
        # A caption of several ranks is one column, unlike in matching scores.
        layout = shard_layout(batch, group, merged=True)
        with torch.no_grad():
            reference = adapter.compare(images.values, texts.values)
        return dual_score_shard(adapter, images, texts, layout, group), reference

    def _choose_pairs(
        self, batch: Batch, generator: torch.Generator, reference: Tensor | None
    ) -> Tensor:
        """Chooses pairs of the rank's batch, by these scores or those of the frozen backbone.

        On the CPU, which needs their number; only a policy that ranks by scores waits for a GPU.
        """
        targets = batch.targets.on_cpu()
        if self.adapter.training:  # validation batches have no mined neighbours
            check_mined(self.pairs, targets)
        if not self.pairs.needs_reference:
            return checked_mask(self.pairs, targets, generator)
        if reference is None:
            reference = self.reference.scores(batch, self.chunk)
        return checked_mask(self.pairs, targets, generator, reference.cpu())

    def _embed(
        self, modality: Modality, batch: Batch, known: dict[Modality, Features], tokens: bool
    ) -> Embeddings:
        """Embeds one modality, with its tokens where `tokens` is set; notes frozen features."""
        embed = _embedder(self.adapter, modality, tokens)
        if self.features.specs[modality].frozen:
            # A frozen backbone has no activations to recompute, only the adapter has.
            known[modality] = self.features.encode_batch(modality, batch, self.chunk)
            return self._in_chunks(embed, known[modality])

        # The backbone runs within a chunk, so that its activations are freed with it.
        def embed_rows(rows: slice) -> Embeddings:
            return embed(self.features.encode_rows(modality, batch, rows))

        count = row_count(modality, batch)
        return in_chunks(embed_rows, count, self.chunk, self.features.backbone.device)

    def _in_chunks(self, embed: Callable[[Features], Any], features: Features) -> Any:
        return in_chunks(
            lambda rows: embed(features[rows]), len(features), self.chunk, features.device
        )


def _embedder(
    adapter: Any, modality: Modality, tokens: bool = False
) -> Callable[[Features], Embeddings]:
    embed = adapter.embed_image if modality == "image" else adapter.embed_text
    if not tokens:
        return lambda features: Pooled(embed(features))
    each = adapter.embed_patches if modality == "image" else adapter.embed_words
    return lambda features: PooledTokens(embed(features), each(features))
