"""The one path from images and captions to features, for training, evaluation and mining.

In: ids, a `FeatureSpec` for each modality, and pixels of images.
Out: features by id, read from a store or from memory, or computed by the backbone.
Never: gradients or dropout behind a frozen representation, or a stored feature computed twice.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.features.memory import MemoryStore
from vlmtune.features.pictures import Failures
from vlmtune.features.pieces import open_or_build_together
from vlmtune.features.store import EmptyStoreError, FeatureStore
from vlmtune.features.store_key import Modality, StoreDType, StoreKey, source_digest, storable
from vlmtune.storage.progress import progress
from vlmtune.types import Features, FeatureSpec, concatenate

CPU_IMAGES = 32  # images encoded at a time; more are slower on a CPU
Pixels = Callable[[Sequence[str]], Iterable[tuple[Sequence[str], Tensor]]]
"""Gives ids and pixels (n, 3, height, width) of the images of some ids, batch by batch."""


@runtime_checkable
class FeatureRows(Protocol):
    """Features by id: a `FeatureStore`, a `MemoryStore`, or words computed on demand."""

    def __contains__(self, name: str) -> bool: ...

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of `ids`, in their order."""
        ...


class FeatureSource:
    """Features of images and captions from one backbone, each in one representation.

    Frozen features stay in the feature store, or in memory without one. Live features are computed
    at each call of `open`, or once inside a `session`. An id names the content: a caption is its
    own id, an image has the digest of its content.

    Args:
        backbone: The backbone.
        image_input: The representation of images.
        text_input: The representation of texts.
        root: Folder of feature stores, or None to store features in memory.
        batch_size: Captions, or images on a GPU, encoded at a time.
        dtype: The type of stored numbers.
        fingerprint: Of the weights; None for `backbone.fingerprint`.
        failures: Whether captions that cannot be encoded raise or are skipped.
    """

    def __init__(
        self,
        backbone: Backbone,
        image_input: FeatureSpec,
        text_input: FeatureSpec,
        root: Path | None = None,
        batch_size: int = 256,
        dtype: StoreDType = "float32",
        fingerprint: str | None = None,
        failures: Failures | None = None,
    ) -> None:
        self.backbone = backbone
        self.specs: dict[Modality, FeatureSpec] = {"image": image_input, "text": text_input}
        self.root, self.batch_size, self.fingerprint = root, batch_size, fingerprint
        self.dtype: StoreDType = dtype
        self.failures = failures or Failures()
        self._memory: dict[Modality, MemoryStore] = {"image": MemoryStore(), "text": MemoryStore()}
        self._session: dict[Modality, MemoryStore] | None = None
        self._stores: dict[Modality, dict[str, FeatureStore]] = {"image": {}, "text": {}}

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Holds live features in memory until the block ends; no weight may change inside it."""
        self._session = {"image": MemoryStore(), "text": MemoryStore()}
        try:
            yield
        finally:
            self._session = None

    def uses_store(self, modality: Modality) -> bool:
        """Whether features of this modality go to the feature store, which all ranks share."""
        return self.root is not None and storable(self.specs[modality])

    def open(
        self, modality: Modality, ids: Sequence[str], pixels: Pixels | None = None
    ) -> FeatureRows:
        """Makes features of `ids` available, computing those that are not stored yet.

        Args:
            modality: Whether `ids` name images or captions.
            ids: The ids.
            pixels: Gives the pixels of images.

        Raises:
            UserError: An image or a caption cannot be encoded.
        """
        spec = self.specs[modality]
        if spec.kind == "words":
            return _Words(partial(self.encode, modality))
        if self.uses_store(modality) and ids:
            with contextlib.suppress(EmptyStoreError):
                store = self.store(modality, ids, pixels)
                if self.failures.skip or all(name in store for name in ids):
                    return store
            # Encoding what is missing raises below, unless failures are skipped.
        memory = self._memory[modality]
        if not spec.frozen:
            memory = MemoryStore() if self._session is None else self._session[modality]
        missing = [name for name in ids if name not in memory]
        if missing:
            with progress(f"encoding {modality}s", len(missing)) as advance:
                for names, features in self.encode(modality, missing, pixels):
                    memory.add(names, features.to("cpu", torch.float32))
                    advance(len(names))
        return memory

    def store(
        self, modality: Modality, ids: Sequence[str], pixels: Pixels | None = None
    ) -> FeatureStore:
        """Returns an open store that holds all `ids`, or opens or builds the store of exactly them.

        A row that another store under `root` has is copied.

        Raises:
            UserError: Nothing can be encoded, the disk is too small, or features are not finite.
        """
        assert self.root is not None
        for store in self._stores[modality].values():
            if all(name in store for name in ids):
                return store
        fingerprint, source = self.fingerprint or self.backbone.fingerprint, source_digest(ids)
        key = StoreKey(fingerprint, modality, self.specs[modality], source, self.dtype)
        encode = partial(self.encode, modality, pixels=pixels)
        store = open_or_build_together(self.root, key, ids, encode)
        self._stores[modality][key.folder] = store
        return store

    def encode(
        self, modality: Modality, ids: Sequence[str], pixels: Pixels | None = None
    ) -> Iterator[tuple[Sequence[str], Features]]:
        """Computes features batch by batch, on the backbone's device.

        Raises:
            UserError: An image or a caption cannot be encoded.
        """
        if modality == "image":
            assert pixels is not None
            size = CPU_IMAGES if self.backbone.device.type == "cpu" else self.batch_size
            for names, batch in pixels(ids):
                for start in range(0, len(names), size):
                    part = slice(start, start + size)
                    yield names[part], self.encode_images(batch[part])
            return
        # Captions of similar length together need little padding.
        texts = sorted(ids, key=lambda text: (len(text), text))
        batches = [texts[i : i + self.batch_size] for i in range(0, len(texts), self.batch_size)]
        for batch in batches:  # one that fails is tried again at the end, text by text
            features = self.failures.attempt(partial(self.encode_texts, batch))
            if features is not None:
                yield batch, features
            elif len(batch) > 1:
                batches += [[text] for text in batch]

    def encode_images(self, pixels: Tensor) -> Features:
        """Computes the features of pixels (n, 3, height, width)."""
        with self._mode("image"):
            return self.backbone.encode_image(pixels.to(self.backbone.device), self.specs["image"])

    def encode_texts(self, texts: Sequence[str]) -> Features:
        """Computes the features of captions, in their order."""
        with self._mode("text"):
            return self.backbone.encode_text(texts, self.specs["text"])

    def _mode(self, modality: Modality) -> contextlib.AbstractContextManager[None]:
        frozen = self.specs[modality].frozen
        return evaluation_mode(self.backbone) if frozen else contextlib.nullcontext()


class _Words:
    """Word embeddings, a table: computed at each call."""

    def __init__(self, encode: Callable[[Sequence[str]], Iterable[tuple]]) -> None:
        self._encode = encode

    def __contains__(self, name: str) -> bool:
        return True

    def features(self, ids: Sequence[str]) -> Features:
        chunks = list(self._encode(list(dict.fromkeys(ids))))
        rows = {name: row for row, name in enumerate(name for names, _ in chunks for name in names)}
        return concatenate([part for _, part in chunks])[torch.tensor([rows[name] for name in ids])]
