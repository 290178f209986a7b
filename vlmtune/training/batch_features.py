"""Features of training batches: read from the store where they are frozen, else computed.

In: a batch, and the images and captions of the corpus to store. Out: features of its rows.
Never: a gradient behind a frozen representation.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from vlmtune.backbones.base import Backbone
from vlmtune.features.encode import FeatureSource
from vlmtune.features.image_digests import StoredImages, image_digests
from vlmtune.features.store import FeatureStore, move_together
from vlmtune.features.store_key import Modality, StoreDType, source_digest
from vlmtune.training.recompute import in_chunks
from vlmtune.types import Batch, Features, FeatureSpec, Pooled, concatenate

TEXTS_AT_A_TIME = 512  # captions in a call of the backbone while a store is built


@runtime_checkable
class CorpusContent(Protocol):
    """The images and captions of a corpus; a `ShardDataModule` is one."""

    def digest(self, split: Literal["train", "val"]) -> str:
        """Returns a digest of the records of a split."""
        ...

    def image_ids(self) -> Collection[str]:
        """Returns the ids of all images."""
        ...

    def image_digests(self) -> dict[str, str]:
        """Returns digests of the content of images, by id."""
        ...

    def distinct_images(
        self, preprocess: Callable[[Any], Tensor], ids: Collection[str]
    ) -> Iterable[tuple[Sequence[str], Tensor]]:
        """Yields ids and pixels of images."""
        ...

    def distinct_texts(self) -> list[str]:
        """Returns all captions, each once, sorted."""
        ...

    def use_stored_images(self, stored: Container[str]) -> None:
        """Leaves images undecoded from now on."""
        ...


class BatchFeatures:
    """The images and texts of batches, each in one representation."""

    def __init__(self, backbone: Backbone, image: FeatureSpec, text: FeatureSpec) -> None:
        self.backbone = backbone
        self.source = FeatureSource(backbone, image, text)
        self.specs = self.source.specs
        self.images: StoredImages | None = None  # the opened stores, if there are any
        self.texts: FeatureStore | None = None

    def open(self, root: Path, corpus: CorpusContent, fingerprint: str, dtype: StoreDType) -> None:
        """Opens the stores of frozen features, building those that are missing."""
        image = self.specs["image"]
        text = self.specs["text"]
        self.source = FeatureSource(
            self.backbone, image, text, root, TEXTS_AT_A_TIME, dtype, fingerprint
        )
        if self.source.uses_store("image"):
            # A caption that the backbone cannot read would else be found after hours of encoding.
            self.backbone.check_words(corpus.distinct_texts())
            self.images = self._stored_images(corpus)
        if self.source.uses_store("text"):
            self.texts = self.source.store("text", corpus.distinct_texts())
        if self.backbone.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.backbone.device)
            self.move_stores(free)

    def move_stores(self, free: int) -> None:
        """Moves the stores to a GPU with `free` bytes if they fit."""
        stores: list[FeatureStore] = []
        if self.images is not None:
            stores.append(self.images.store)
        if self.texts is not None:
            stores.append(self.texts)
        move_together(stores, self.backbone.device, free)

    def _stored_images(self, corpus: CorpusContent) -> StoredImages:
        """The store of images, whose rows are known by the digest of an image's content."""
        assert self.source.root is not None
        # Digests say which images are equal, so that copies are encoded once.
        splits = [corpus.digest("train"), corpus.digest("val")]
        digest_of = image_digests(
            self.source.root, source_digest(splits), corpus.image_ids(), corpus.image_digests
        )
        first_id_of: dict[str, str] = {}
        for image_id, digest in digest_of.items():
            first_id_of.setdefault(digest, image_id)

        # The store asks for rows by digest, and the corpus reads pixels by image id.
        def pixels(digests: Sequence[str]) -> Iterator[tuple[list[str], Tensor]]:
            ids = [first_id_of[digest] for digest in digests]
            for image_ids, values in corpus.distinct_images(self.backbone.preprocess, ids):
                names = [digest_of[image_id] for image_id in image_ids]
                yield names, values

        store = self.source.store("image", list(first_id_of), pixels)
        return StoredImages(store, digest_of)

    def encode_batch(self, modality: Modality, batch: Batch, chunk: int | None = None) -> Features:
        """Returns the features of all images or all texts of a batch."""
        store = self.images if modality == "image" else self.texts
        if store is not None:
            chunk = None  # reading keeps no activations
        # Nothing before a frozen representation is trained.
        is_trained = not self.specs[modality].frozen
        encode = partial(self.encode_rows, modality, batch)
        with torch.set_grad_enabled(is_trained and torch.is_grad_enabled()):
            return in_chunks(encode, row_count(modality, batch), chunk, self.backbone.device)

    def encode_both(
        self, batch: Batch, chunk: int | None, known: Mapping[Modality, Features]
    ) -> list[Any]:
        """Returns the features of all images and of all texts of a batch, those of images first.

        `known` are features of the batch by the same backbone; those of this kind are returned.
        """
        both: list[Features] = []
        for modality, spec in self.specs.items():
            features = known.get(modality)
            if features is None or isinstance(features, Pooled) != (spec.kind == "pooled"):
                features = self.encode_batch(modality, batch, chunk)
            both.append(features)
        return both

    def encode_rows(self, modality: Modality, batch: Batch, rows: slice) -> Features:
        """Returns the features of the chosen images or texts of a batch.

        A caption that is not in the store, such as a negative made during training, is encoded and
        rounded to the type of the store.
        """
        if modality == "text":
            return self._texts(batch.texts[rows])
        if self.images is not None:
            return self.images.features(batch.image_ids[rows]).to(self.backbone.device)
        assert batch.pixels is not None
        return self.source.encode_images(batch.pixels[rows])

    def _texts(self, texts: Sequence[str]) -> Features:
        store = self.texts
        if store is None:
            return self.source.encode_texts(texts)
        device = self.backbone.device
        missing = [text for text in texts if text not in store]
        if not missing:
            return store.features(texts).to(device)
        parts = []
        known = [text for text in texts if text in store]
        if known:
            parts.append(store.features(known).to(device))
        # Rounded as the store would have rounded them, so that reading and encoding agree.
        store_dtype = getattr(torch, self.source.dtype)
        rounded = self.source.encode_texts(missing).to(device, store_dtype)
        parts.append(rounded.to(device, torch.float32))
        # Known texts come first, then missing ones: each back to its position in the batch.
        row_of = {text: row for row, text in enumerate(known + missing)}
        rows = [row_of[text] for text in texts]
        return concatenate(parts).take(torch.tensor(rows))


def row_count(modality: Modality, batch: Batch) -> int:
    """How many images or texts a batch has."""
    return len(batch.image_ids) if modality == "image" else len(batch.texts)
