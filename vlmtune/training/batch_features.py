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
from vlmtune.features.image_digests import image_digests
from vlmtune.features.store import FeatureStore
from vlmtune.features.store_key import Modality, StoreDType, source_digest
from vlmtune.training.recompute import in_chunks
from vlmtune.types import Batch, Features, FeatureSpec, concatenate

TEXTS_AT_A_TIME = 512


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


class StoredImages:
    """A store of images by the digest of their content, read by image id.

    Args:
        store: The store.
        digests: The digest of each image id.
    """

    def __init__(self, store: FeatureStore, digests: Mapping[str, str]) -> None:
        self.store, self.digests = store, digests

    def __contains__(self, name: str) -> bool:
        return self.digests.get(name, "") in self.store

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of images, in the order of `ids`.

        Raises:
            UserError: An image is not in the store.
        """
        return self.store.features([self.digests.get(name, name) for name in ids])


class BatchFeatures:
    """The images and texts of batches, each in one representation.

    Args:
        backbone: The backbone.
        image: The representation of images.
        text: The representation of texts.

    Attributes:
        images: The opened store of images, if any.
        texts: The opened store of captions, if any.
    """

    def __init__(self, backbone: Backbone, image: FeatureSpec, text: FeatureSpec) -> None:
        self.source = FeatureSource(backbone, image, text)
        self.backbone, self.specs = backbone, self.source.specs
        self.images: StoredImages | None = None
        self.texts: FeatureStore | None = None

    def open(self, root: Path, corpus: CorpusContent, fingerprint: str, dtype: StoreDType) -> None:
        """Opens the stores of frozen features, building those that are missing.

        Args:
            root: Folder of stores.
            corpus: The images and captions to store.
            fingerprint: Of the backbone as it was loaded.
            dtype: The type of stored numbers.

        Raises:
            UserError: The disk is too small, a caption has a word that the backbone does not know,
                or features are not finite in `dtype`.
        """
        image, text = self.specs["image"], self.specs["text"]
        source = FeatureSource(
            self.backbone, image, text, root, TEXTS_AT_A_TIME, dtype, fingerprint
        )
        self.source = source
        if source.uses_store("image"):
            self.backbone.check_words(corpus.distinct_texts())  # before all images are encoded
            content = source_digest([corpus.digest("train"), corpus.digest("val")])
            digests = image_digests(root, content, corpus.image_ids(), corpus.image_digests)
            first: dict[str, str] = {}
            for image_id, digest in digests.items():
                first.setdefault(digest, image_id)

            def pixels(wanted: Sequence[str]) -> Iterator[tuple[list[str], Tensor]]:
                ids = [first[digest] for digest in wanted]
                for batch, values in corpus.distinct_images(self.backbone.preprocess, ids):
                    yield [digests[image_id] for image_id in batch], values

            store = source.store("image", list(first), pixels)
            self.images = StoredImages(store, digests)
        if source.uses_store("text"):
            self.texts = source.store("text", corpus.distinct_texts())

    def encode_batch(self, modality: Modality, batch: Batch, chunk: int | None = None) -> Features:
        """Returns the features of all images or all texts of a batch.

        Args:
            modality: Which of them.
            batch: The batch.
            chunk: How many to encode at a time; None for all.
        """
        rows = len(batch.image_ids if modality == "image" else batch.texts)
        if (self.images if modality == "image" else self.texts) is not None:
            chunk = None
        grad = torch.is_grad_enabled() and not self.specs[modality].frozen
        with torch.set_grad_enabled(grad):
            encode = partial(self.encode_rows, modality, batch)
            return in_chunks(encode, rows, chunk, self.backbone.device)

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
        store, device = self.texts, self.backbone.device
        if store is None:
            return self.source.encode_texts(texts)
        missing = [text for text in texts if text not in store]
        if not missing:
            return store.features(texts).to(device)
        known = [text for text in texts if text in store]
        dtype = getattr(torch, self.source.dtype)
        parts = [self.source.encode_texts(missing).to(device, dtype).to(device, torch.float32)]
        if known:
            parts.insert(0, store.features(known).to(device))
        row = {text: i for i, text in enumerate([*known, *missing])}
        order = torch.tensor([row[text] for text in texts], device=device)
        return concatenate(parts)[order]
