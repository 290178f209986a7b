"""From images and texts to scores: what benchmarks, reports and exported models call.

In: images, texts and pairs of them. Out: their scores or embeddings, in float32 on the CPU.
Never: the same image, text or pair computed twice in a call, or a change of any weight.
Each rank encodes and scores its part of the images; then every rank has all scores.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.adapters.base import Adapter, DualAdapter
from vlmtune.backbones.base import Backbone
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.benchmarks.pair_scorer import PairScores
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.evaluation.request import Request, make_request
from vlmtune.features.encode import FeatureRows, FeatureSource
from vlmtune.features.memory import MemoryStore
from vlmtune.features.pictures import Failures, Picture, PictureReader, as_pictures
from vlmtune.features.store_key import Modality, StoreDType, storable
from vlmtune.storage.progress import progress
from vlmtune.types import Features, Pooled

NUMBERS = 2**24
"""Scores, or numbers of embeddings laid out by pair, on the device at a time."""

Items = Mapping[Modality, Mapping[str, Any]]
"""Pictures by digest, and captions by themselves."""


class Scorer:
    """Scores images against texts with a backbone and an adapter.

    Each image, caption and pair is encoded and scored once, however often it occurs. Frozen
    features stay in the feature store, or in memory without one, from call to call; live features
    are computed in each call, or once within a `session`. Images are compared by their content. A
    dual adapter embeds each image and each text, then compares the pairs; a joint adapter scores
    the pairs tile by tile.

    All ranks of `torch.distributed` share the work: every rank must make the same calls, and every
    rank returns all scores, or raises if one rank fails.

    Args:
        backbone: The backbone.
        adapter: The adapter, attached to the backbone.
        store: Folder of feature stores, or None to hold features in memory.
        batch_size: Images, or texts, encoded at a time.
        dtype: The type of stored numbers.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        store: Path | None = None,
        batch_size: int = 256,
        dtype: StoreDType = "float32",
    ) -> None:
        self.backbone = backbone
        # A training method may wrap the adapter that scores.
        self.adapter = adapter.scoring
        self.batch_size = batch_size
        self._group = ProcessGroup()
        self._failures = Failures()  # shared: a reader and a source report to the same
        self._pictures = PictureReader(backbone.preprocess, batch_size, self._failures)
        self._source = FeatureSource(
            backbone,
            self.adapter.image_input,
            self.adapter.text_input,
            store,
            batch_size,
            dtype,
            failures=self._failures,
        )
        self._embeddings: dict[Modality, MemoryStore] | None = None

    def __call__(
        self,
        images: Sequence[Picture | str | Path],
        texts: Sequence[str],
        pairs: Int[Tensor, "P 2"] | None = None,
    ) -> PairScores:
        """Scores the P pairs (row of `images`, row of `texts`), or all N x M without `pairs`.

        Raises:
            UserError: An image cannot be read or a caption cannot be encoded.
            ValueError: A pair is out of range.
        """
        with evaluation_mode(self.backbone, self.adapter):
            request = make_request(as_pictures(images), texts, pairs, self._digests)
            if request.images and request.texts:
                compute = self._dual if _is_dual(self.adapter) else self._joint
                scores = compute(request)
                return request.restore(scores)
        # Without a pair there is nothing to encode.
        shape = (len(images), len(texts)) if pairs is None else (0,)
        return torch.zeros(shape)

    @property
    def held(self) -> int:
        """How many features of images and captions are in memory."""
        return self._source.held

    @property
    def embeds(self) -> bool:
        """Whether images and texts have embeddings of their own; a joint adapter only has pairs."""
        return isinstance(self.adapter, DualAdapter)

    def check_embeds(self) -> None:
        """Raises a `UserError` unless images and texts have embeddings of their own."""
        if not self.embeds:
            raise UserError(
                f"expected an adapter with embeddings, got {type(self.adapter).__name__}, a joint "
                "one that reads image and text together: score pairs with it, or leave out the "
                "benchmark (`ensemble: scores` where it has that option)"
            )

    @contextlib.contextmanager
    def session(self, images: Sequence[Picture], texts: Sequence[str]) -> Iterator[None]:
        """Serves several calls on parts of `images` and `texts`; no weight may change meanwhile.

        All calls read from one feature store, and embeddings and live features are computed once.
        An image or caption that cannot be encoded is skipped here; the call that needs it raises.
        """
        self._embeddings = _empty()
        try:
            with self._source.session():
                # A benchmark with one bad image must not take the others of the suite with it.
                with evaluation_mode(self.backbone, self.adapter), self._failures.skipped():
                    self._prepare(images, texts)
                yield
        finally:
            self._embeddings = None

    def embed_images(self, images: Sequence[Picture | str | Path]) -> Float[Tensor, "N d"]:
        """Embeds N images with a dual adapter; not normalised."""
        self.check_embeds()
        with evaluation_mode(self.backbone, self.adapter):
            images = as_pictures(images)
            ids = self._digests(images)
            items = dict(zip(ids, images, strict=True))
            embeddings = self._embed({"image": items})["image"]
            return self._rows(embeddings, ids)

    def embed_texts(self, texts: Sequence[str]) -> Float[Tensor, "M d"]:
        """Embeds M captions with a dual adapter; not normalised."""
        self.check_embeds()
        with evaluation_mode(self.backbone, self.adapter):
            embeddings = self._embed({"text": _by_name(texts)})["text"]
            return self._rows(embeddings, texts)

    def _prepare(self, images: Sequence[Picture], texts: Sequence[str]) -> None:
        """Stores and embeds what the calls of a session may need."""
        digests = self._digests(images)
        by_digest = dict(zip(digests, images, strict=True))
        by_digest.pop("", None)  # images that cannot be read have no digest
        items: Items = {"image": by_digest, "text": _by_name(texts)}

        def fill() -> None:  # the first rank builds a store, the others wait and open it
            for modality, named in items.items():
                if self._source.uses_store(modality):
                    self._open(modality, named, [])

        self._group.run(fill)
        if _is_dual(self.adapter):
            self._embed(items)

    def _digests(self, images: Sequence[Picture]) -> list[str]:
        """Returns digests of the images; each rank reads its part of the files."""
        local = images[self._group.slice(len(images))]
        parts = self._group.run(lambda: self._pictures.digests(local))
        names = list(chain.from_iterable(parts))
        if self._group.size > 1:
            # The next call asks for the same files again, perhaps on another rank.
            self._pictures.remember(images, names)
        return names

    # -- dual adapters ------------------------------------------------------------------------

    def _dual(self, request: Request) -> PairScores:
        """Compares embeddings: row by row for chosen pairs, by matrix products for all."""
        items: Items = {"image": request.images, "text": _by_name(request.texts)}
        embeddings = self._embed(items)
        # Embeddings wait on the CPU; only those of this call take memory of the device.
        device = self.backbone.device
        images = self._rows(embeddings["image"], request.images).to(device)
        texts = self._rows(embeddings["text"], request.texts).to(device)
        if request.pairs is None:
            return self._compare_all(images, texts)
        return self._compare_pairs(images, texts, request.pairs.to(device))

    def _compare_all(
        self, image: Float[Tensor, "N d"], text: Float[Tensor, "M d"]
    ) -> Float[Tensor, "N M"]:
        adapter = cast(DualAdapter, self.adapter)
        scores = torch.empty(len(image), len(text))
        step = max(1, NUMBERS // len(text))  # the whole matrix may not fit on the device
        for top in range(0, len(image), step):
            rows = slice(top, top + step)
            part = adapter.compare(image[rows], text)
            scores[rows] = part.cpu()
        return scores

    def _compare_pairs(
        self, image: Float[Tensor, "N d"], text: Float[Tensor, "M d"], pairs: Int[Tensor, "P 2"]
    ) -> Float[Tensor, "P"]:
        adapter = cast(DualAdapter, self.adapter)
        parts = []
        # Embeddings laid out by pair: an image of many pairs is repeated.
        step = max(1, NUMBERS // image.shape[1])
        for chunk in pairs.split(step):
            rows, columns = chunk.unbind(dim=1)
            scores = adapter.compare_pairs(image[rows], text[columns])
            parts.append(scores.float().cpu())  # benchmarks read float32
        return torch.cat(parts)

    def _embed(self, items: Items) -> dict[Modality, MemoryStore]:
        """Returns embeddings by id, after each rank has computed its part of the missing ones."""
        embeddings = self._embeddings or _empty()
        missing: dict[Modality, dict[str, Any]] = {}
        for modality, named in items.items():
            known = embeddings[modality]
            missing[modality] = {name: named[name] for name in named if name not in known}
        # All ranks have the same embeddings, so all return here or none does.
        if not any(missing.values()):
            return embeddings

        # A list and no generator: the group gathers it, and an error reaches every rank.
        def embed() -> list[tuple[Modality, Sequence[str], Tensor]]:
            parts = []
            for modality, named in missing.items():
                for names, values in self._embed_part(modality, named):
                    parts.append((modality, names, values))
            return parts

        for parts_of_rank in self._group.run(embed):
            for modality, names, values in parts_of_rank:
                embeddings[modality].add(names, Pooled(values))
        return embeddings

    def _embed_part(
        self, modality: Modality, items: Mapping[str, Any]
    ) -> Iterator[tuple[Sequence[str], Float[Tensor, "n d"]]]:
        """Embeds this rank's part of `items`, chunk by chunk."""
        adapter = cast(DualAdapter, self.adapter)
        embed = adapter.embed_image if modality == "image" else adapter.embed_text
        ids = list(items)[self._group.slice(len(items))]
        if not ids:
            return
        if storable(self._source.specs[modality]):
            rows = self._open(modality, items, ids)
            # An item that cannot be encoded has no row; within a session it is skipped.
            ids = [name for name in ids if name in rows]
            chunks = self._chunks(rows, ids)
        else:
            # Features that cannot be stored are not kept: only their embedding is needed again.
            read = partial(self._pictures.batches, items)
            chunks = self._source.encode(modality, ids, read)
        with progress(f"embedding {modality}s", len(ids)) as advance:
            for names, features in chunks:
                embeddings = embed(features)
                yield names, embeddings.float().cpu()
                advance(len(names))

    def _chunks(
        self, rows: FeatureRows, ids: Sequence[str]
    ) -> Iterator[tuple[Sequence[str], Features]]:
        """Stored features, a batch at a time."""
        for start in range(0, len(ids), self.batch_size):
            names = ids[start : start + self.batch_size]
            yield names, self._get(rows, names)

    def _rows(self, embeddings: MemoryStore, ids: Iterable[str]) -> Float[Tensor, "n d"]:
        names = list(ids)
        # `MemoryStore.features` takes one id at least.
        if not names:
            return torch.zeros(0, self.backbone.embed_dim)
        return cast(Pooled, embeddings.features(names)).values

    # -- joint adapters -----------------------------------------------------------------------

    def _joint(self, request: Request) -> PairScores:
        """Scores the pairs; each rank takes the images that have its part of them."""
        rows = request.rows(self._group.rank, self._group.size)
        # A `torchmetrics` state would wait for ever for a rank that fails here; `run` tells it.
        parts = self._group.run(lambda: self._score_rows(request, rows))
        return torch.cat(parts)

    def _score_rows(
        self, request: Request, rows: range
    ) -> Float[Tensor, "P"] | Float[Tensor, "rows M"]:
        """Scores the pairs of `rows`, one tile of images and texts at a time."""
        if not rows:
            shape = (0, len(request.texts)) if request.pairs is None else (0,)
            return torch.zeros(shape)
        names = list(request.images)
        columns = request.columns(rows).tolist()
        texts_of_rank = [request.texts[column] for column in columns]
        # This rank opens features of what its pairs name, and of nothing else.
        image_rows = self._open("image", request.images, names[rows.start : rows.stop])
        text_rows = self._open("text", _by_name(request.texts), texts_of_rank)
        parts = []
        with progress("scoring", request.count(rows)) as advance:
            for top in range(rows.start, rows.stop, self.batch_size):
                bottom = min(top + self.batch_size, rows.stop)
                tile = request.tile(range(top, bottom))
                tile_texts = [request.texts[column] for column in tile.columns.tolist()]
                values = torch.zeros(tile.mask.shape)  # `select` returns those of pairs alone
                for left in range(0, len(tile_texts), self.batch_size):
                    block = slice(left, left + self.batch_size)
                    mask = tile.mask[:, block]
                    texts = self._get(text_rows, tile_texts[block])
                    # Images without a pair among these texts are not scored with them.
                    has_pair = mask.any(dim=1)
                    used_names = list(compress(names[top:bottom], has_pair.tolist()))
                    images = self._get(image_rows, used_names)
                    values[has_pair, block] = self._score_block(images, texts, mask[has_pair])
                    advance(int(mask.sum()))
                parts.append(tile.select(values))
        return torch.cat(parts)

    def _score_block(
        self, images: Features, texts: Features, mask: Bool[Tensor, "r c"]
    ) -> Float[Tensor, "r c"]:
        scores = self.adapter(images, texts, mask)
        values = scores.values.float()
        # NaN marks a pair without a score: 0 would be a score.
        return values.masked_fill(~scores.computed, torch.nan).cpu()

    # -- features -----------------------------------------------------------------------------

    def _open(
        self, modality: Modality, items: Mapping[str, Any], ids: Sequence[str]
    ) -> FeatureRows:
        """Opens features of this rank's `ids`; of all items if a store holds them for all ranks."""
        wanted = list(items) if self._source.uses_store(modality) else ids
        read = partial(self._pictures.batches, items)
        return self._source.open(modality, wanted, read)

    def _get(self, rows: FeatureRows, ids: Sequence[str]) -> Features:
        return rows.features(ids).to(self.backbone.device)


def _empty() -> dict[Modality, MemoryStore]:
    return {"image": MemoryStore(), "text": MemoryStore()}


def _by_name(texts: Sequence[str]) -> dict[str, str]:
    return dict(zip(texts, texts, strict=True))


def _is_dual(adapter: Adapter) -> bool:
    """Whether scores are comparisons of embeddings, not the result of a special `forward`."""
    if not isinstance(adapter, DualAdapter):
        return False
    kind = type(adapter)
    if kind.forward is not DualAdapter.forward:
        return False
    # A comparison of its own by matrix products needs one of pairs, too.
    inherits_compare = kind.compare is DualAdapter.compare
    has_compare_pairs = kind.compare_pairs is not DualAdapter.compare_pairs
    return inherits_compare or has_compare_pairs
