"""Images and captions to features by id, each encoded once."""

import contextlib
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from PIL import Image
from torch import Tensor

from vlmtune.backbones.base import Backbone
from vlmtune.data.images import digest, read
from vlmtune.errors import UserError
from vlmtune.features.files import DType, progress
from vlmtune.features.store import (
    FeatureStore,
    MemoryStore,
    StoreKey,
    open_or_build,
    shared,
    source_digest,
)
from vlmtune.types import Features, FeatureSpec, ImageRef, concatenate

Picture = ImageRef | Image.Image
Modality = Literal["image", "text"]
WORKERS = min(8, os.cpu_count() or 1)
Blocks = Iterator[tuple[Sequence[str], Features]]


@runtime_checkable
class Bank(Protocol):
    """Features by id."""

    def __contains__(self, name: str) -> bool: ...

    def features(self, ids: Sequence[str]) -> Features:
        """The rows of `ids`, in their order."""
        ...


class Encoder:
    """What a backbone makes of images and captions.

    Frozen representations stay in the feature store, or without one in memory; live ones are
    encoded anew each time, except within `keeping`. Images go by a digest of their content,
    captions by themselves.

    Args:
        backbone: The backbone.
        store: Folder of feature stores, or None to keep features in memory.
        batch_size: Images, or captions, encoded at a time.
        dtype: The type features are stored as on disk.
    """

    def __init__(
        self, backbone: Backbone, store: Path | None, batch_size: int, dtype: DType
    ) -> None:
        self.backbone, self.store, self.batch_size = backbone, store, batch_size
        self.dtype: DType = dtype
        self._kept: dict[tuple[Modality, FeatureSpec], MemoryStore] = {}
        self._live: dict[tuple[Modality, FeatureSpec], MemoryStore] | None = None
        self._opened: dict[tuple[Modality, FeatureSpec], dict[str, FeatureStore]] = {}
        self._digests: dict[tuple[Any, ...], str] = {}

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keeps live representations too: within it no weight may change."""
        self._live = {}
        try:
            yield
        finally:
            self._live = None

    def stores(self, reads: FeatureSpec) -> bool:
        """Whether `reads` goes through the feature store, one for all ranks."""
        return self.store is not None and _lasts(reads)

    def bank(
        self,
        modality: Modality,
        things: Mapping[str, Any],
        reads: FeatureSpec,
        passing_over: bool = False,
    ) -> Bank:
        """Returns the features of `things` by id, after encoding those that are not there.

        Args:
            modality: Whether `things` are images or captions.
            things: Images or captions by id.
            reads: The representation.
            passing_over: Leave out what cannot be encoded, instead of raising.

        Raises:
            UserError: One of them cannot be encoded.
        """
        if reads.kind == "words":
            return _Fresh(lambda ids: self.blocks(modality, things, reads, ids))
        if self.stores(reads) and things:
            stored = self._stored(modality, things, reads, passing_over)
            if passing_over or all(name in stored for name in things):
                return stored
            # What is not there could not be encoded then: below it is tried again, and raises.
        kept = self._kept if reads.frozen else self._live
        memory = (
            MemoryStore() if kept is None else kept.setdefault((modality, reads), MemoryStore())
        )
        missing = [name for name in things if name not in memory]
        if missing:
            with progress(f"encoding {modality}s", len(missing)) as advance:
                for names, features in self.blocks(modality, things, reads, missing, passing_over):
                    memory.add(names, features.to("cpu", torch.float32))
                    advance(len(names))
        return memory

    def _stored(
        self, modality: Modality, things: Mapping[str, Any], reads: FeatureSpec, passing_over: bool
    ) -> Bank:
        """Finds an open store that holds `things`, or opens or makes that of exactly them."""
        assert self.store is not None
        opened = self._opened.setdefault((modality, reads), {})
        for known in opened.values():
            if all(name in known for name in things):
                return known
        source = source_digest(things)
        key = StoreKey(self.backbone.fingerprint, modality, reads, source, self.dtype)

        store = self.store

        def encode(left: list[str]) -> Blocks:
            return self.blocks(modality, things, reads, left, passing_over)

        def produce() -> Blocks:
            blocks = shared(store, key, things, encode)
            first = next(blocks, None)
            if first is None:
                raise _NothingError
            return itertools.chain([first], blocks)

        try:
            opened[key.folder] = open_or_build(self.store, key, produce, len(things))
        except _NothingError:
            return MemoryStore()
        return opened[key.folder]

    def blocks(
        self,
        modality: Modality,
        things: Mapping[str, Any],
        reads: FeatureSpec,
        ids: Sequence[str],
        passing_over: bool = False,
    ) -> Blocks:
        """Encodes `ids` batch by batch, on the backbone's device.

        Args:
            modality: Whether `things` are images or captions.
            things: Images or captions by id.
            reads: The representation.
            ids: Which of `things`.
            passing_over: Leave out what cannot be encoded, instead of raising.

        Raises:
            UserError: One of them cannot be encoded.
        """
        if modality == "image":
            for names, pixels in self._loaded(ids, things, passing_over):
                batch = torch.stack(pixels).to(self.backbone.device)
                yield names, self.backbone.encode_image(batch, reads)
            return
        # Captions of one length together: little padding is computed.
        ids = sorted(ids, key=lambda text: (len(text), text))
        for texts in _chunks(ids, self.batch_size):
            yield from self._texts(texts, reads, passing_over)

    def digests(self, images: Sequence[Picture], passing_over: bool = False) -> list[str]:
        """Digests of the content of images; those of files are kept while size and time stay.

        Args:
            images: Files, or pictures.
            passing_over: Give "" for a file that cannot be read, instead of raising.

        Raises:
            UserError: A file cannot be read.
        """

        def one(image: Picture) -> str:
            try:
                return self._digest(image)
            except UserError:
                if not passing_over:
                    raise
                return ""

        if len(images) < self.batch_size:  # threads would take longer to start
            return [one(image) for image in images]
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(one, images))

    def _digest(self, image: Picture) -> str:
        if not isinstance(image, ImageRef):
            image = image.convert("RGB")
            return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()
        state = _state(image)
        if state is None:
            return digest(image)  # which says what is wrong
        if state not in self._digests:
            self._digests[state] = digest(image)
        return self._digests[state]

    def note(self, images: Sequence[Picture], names: Sequence[str]) -> None:
        """Takes over digests that other ranks have computed; "" is none."""
        for image, name in zip(images, names, strict=True):
            if name and isinstance(image, ImageRef) and (state := _state(image)) is not None:
                self._digests.setdefault(state, name)

    def _texts(self, texts: Sequence[str], reads: FeatureSpec, passing_over: bool) -> Blocks:
        try:
            yield texts, self.backbone.encode_text(texts, reads)
        except UserError:
            if not passing_over:
                raise
            for text in texts:
                with contextlib.suppress(UserError):
                    yield [text], self.backbone.encode_text([text], reads)

    def _loaded(
        self, ids: Sequence[str], images: Mapping[str, Picture], passing_over: bool
    ) -> Iterator[tuple[list[str], list[Tensor]]]:
        """Gives preprocessed images, the next batch being read while one is encoded."""

        def load(name: str) -> Tensor | None:
            image = images[name]
            try:
                image = read(image) if isinstance(image, ImageRef) else image.convert("RGB")
            except UserError:
                if not passing_over:
                    raise
                return None
            return self.backbone.preprocess(image)

        waiting: deque[list[tuple[str, Future[Tensor | None]]]] = deque()
        with ThreadPoolExecutor(WORKERS) as pool:
            for chunk in (*_chunks(ids, self.batch_size), []):  # the empty one pushes out the last
                waiting.append([(name, pool.submit(load, name)) for name in chunk])
                if len(waiting) > 1:
                    done = [(name, future.result()) for name, future in waiting.popleft()]
                    there = [(name, pixels) for name, pixels in done if pixels is not None]
                    if there:
                        yield [name for name, _ in there], [pixels for _, pixels in there]


class _NothingError(Exception):
    """Nothing at all can be encoded."""


class _Fresh:
    """Features that are encoded whenever they are asked for: word embeddings are a table."""

    def __init__(self, encode: Callable[[Sequence[str]], Blocks]) -> None:
        self._encode = encode

    def __contains__(self, name: str) -> bool:
        return True

    def features(self, ids: Sequence[str]) -> Features:
        """The rows of `ids`, in their order."""
        distinct = list(dict.fromkeys(ids))
        names, parts = [], []
        for block, features in self._encode(distinct):
            names += block
            parts.append(features)
        row = {name: i for i, name in enumerate(names)}
        return concatenate(parts)[torch.tensor([row[name] for name in ids])]


def _chunks(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _lasts(reads: FeatureSpec) -> bool:
    return reads.frozen and reads.kind != "words"


def _state(image: ImageRef) -> tuple[Any, ...] | None:
    """What tells whether a file has changed; None where there is none."""
    try:
        status = image.path.stat()
    except OSError:
        return None
    return image.path, image.box, status.st_size, status.st_mtime_ns
