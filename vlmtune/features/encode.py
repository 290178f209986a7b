"""The one path from images and captions to features, for training, evaluation and mining.

In: ids, a `FeatureSpec` for each modality, and pixels of images.
Out: features by id, read from a store or from memory, or computed by the backbone.
Never: gradients or dropout behind a frozen representation, or a stored feature computed twice.
"""

import contextlib
from collections import deque
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
        self.root = None if root is None else root.expanduser()  # no shell reads a config
        self.batch_size = batch_size
        self.fingerprint = fingerprint
        self.dtype: StoreDType = dtype
        self.failures = failures or Failures()
        self._memory: dict[Modality, MemoryStore] = {"image": MemoryStore(), "text": MemoryStore()}
        self._session: dict[Modality, MemoryStore] | None = None
        self._stores: dict[Modality, dict[str, FeatureStore]] = {"image": {}, "text": {}}

    @property
    def held(self) -> int:
        """How many features of images and captions are in memory."""
        return sum(map(len, self._memory.values()))

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
        """Makes features of `ids` available, computing those that are not stored yet."""
        if self.specs[modality].kind == "words":
            return _Words(partial(self.encode, modality))
        if self.uses_store(modality) and ids:
            with contextlib.suppress(EmptyStoreError):
                store = self.store(modality, ids, pixels)
                if self.failures.skip or all(name in store for name in ids):
                    return store
            # Encoding what is missing raises below, unless failures are skipped.
        # From here on: no store, or one that lacks what could not be encoded.
        memory = self._memory_for(modality)
        missing = [name for name in ids if name not in memory]
        if missing:
            with progress(f"encoding {modality}s", len(missing)) as advance:
                for names, features in self.encode(modality, missing, pixels):
                    memory.add(names, features.to("cpu", torch.float32))
                    advance(len(names))
        return memory

    def _memory_for(self, modality: Modality) -> MemoryStore:
        """Where features that no store holds are kept; live ones only as long as they are valid."""
        if self.specs[modality].frozen:
            return self._memory[modality]
        if self._session is not None:
            return self._session[modality]
        return MemoryStore()

    def store(
        self, modality: Modality, ids: Sequence[str], pixels: Pixels | None = None
    ) -> FeatureStore:
        """Returns an open store that holds all `ids`, or opens or builds the store of exactly them.

        A row that another store under `root` has is copied.
        """
        assert self.root is not None
        # A store of a larger set serves its parts.
        for store in self._stores[modality].values():
            if all(name in store for name in ids):
                return store
        fingerprint = self.fingerprint or self.backbone.fingerprint
        source = source_digest(ids)
        key = StoreKey(fingerprint, modality, self.specs[modality], source, self.dtype)
        encode = partial(self.encode, modality, pixels=pixels)
        store = open_or_build_together(self.root, key, ids, encode)
        self._stores[modality][key.folder] = store
        return store

    def encode(
        self, modality: Modality, ids: Sequence[str], pixels: Pixels | None = None
    ) -> Iterator[tuple[Sequence[str], Features]]:
        """Computes features batch by batch, on the backbone's device."""
        if modality == "image":
            assert pixels is not None
            yield from self._image_batches(pixels(ids))
        else:
            yield from self._text_batches(ids)

    def _image_batches(
        self, batches: Iterable[tuple[Sequence[str], Tensor]]
    ) -> Iterator[tuple[Sequence[str], Features]]:
        on_cpu = self.backbone.device.type == "cpu"
        size = CPU_IMAGES if on_cpu else self.batch_size
        for names, pixels in batches:
            for start in range(0, len(names), size):
                part = slice(start, start + size)
                yield names[part], self.encode_images(pixels[part])

    def _text_batches(self, texts: Sequence[str]) -> Iterator[tuple[Sequence[str], Features]]:
        # Captions of similar length together need little padding.
        texts = sorted(texts, key=lambda text: (len(text), text))
        waiting: deque[list[str]] = deque()
        for start in range(0, len(texts), self.batch_size):
            waiting.append(texts[start : start + self.batch_size])
        while waiting:
            batch = waiting.popleft()
            features = self.failures.attempt(partial(self.encode_texts, batch))
            if features is not None:
                yield batch, features
            elif len(batch) > 1:
                # One caption of the batch fails: each is tried alone, after all other batches.
                waiting.extend([text] for text in batch)

    def encode_images(self, pixels: Tensor) -> Features:
        """Computes the features of pixels (n, 3, height, width)."""
        pixels = pixels.to(self.backbone.device)
        with self._mode("image"):
            return self.backbone.encode_image(pixels, self.specs["image"])

    def encode_texts(self, texts: Sequence[str]) -> Features:
        """Computes the features of captions, in their order."""
        with self._mode("text"):
            return self.backbone.encode_text(texts, self.specs["text"])

    def _mode(self, modality: Modality) -> contextlib.AbstractContextManager[None]:
        if self.specs[modality].frozen:
            return evaluation_mode(self.backbone)
        return contextlib.nullcontext()


class _Words:
    """Word embeddings, a table: computed at each call."""

    def __init__(self, encode: Callable[[Sequence[str]], Iterable[tuple]]) -> None:
        self._encode = encode

    def __contains__(self, name: str) -> bool:
        return True

    def features(self, ids: Sequence[str]) -> Features:
        # Batches come ordered by length, so rows are put back into the order of `ids`.
        distinct = list(dict.fromkeys(ids))
        row_of: dict[str, int] = {}
        parts = []
        for names, features in self._encode(distinct):
            for name in names:
                row_of[name] = len(row_of)
            parts.append(features)
        rows = torch.tensor([row_of[name] for name in ids])
        return concatenate(parts)[rows]
