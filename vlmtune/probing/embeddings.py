"""Embeddings of transformed images, from the feature store or from a frozen model.

In: a model, images and tasks. Out: a matrix of embeddings for each task and split.
Never: a transformed image that is stored, or one that is made twice for the same store.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.adapters.base import JointAdapter
from vlmtune.backbones.evaluation_mode import evaluation_mode
from vlmtune.errors import UserError
from vlmtune.features.pictures import WORKERS
from vlmtune.features.store import copy_from, open_or_build_store, similar_stores
from vlmtune.features.store_key import StoreKey, source_digest
from vlmtune.model.model import Model
from vlmtune.probing.sheet import square
from vlmtune.probing.sources import LabelledImage
from vlmtune.probing.tasks import Task, Version
from vlmtune.storage.folder import digest
from vlmtune.types import FeatureSpec, Pixels, Pooled

UNPROJECTED = "before-projection"
TEXT = "a photo"
LAYERS = f"pooled, {UNPROJECTED}, patches-K or class-K, K layers from the end"


@runtime_checkable
class HasCls(Protocol):
    """A joint adapter that makes its score of [CLS] outputs."""

    def cls_outputs(self, image: Any, text: Any) -> Float[Tensor, "P *c w"]:
        """Returns the outputs of prepared text i with prepared image i."""
        ...


class LayerEmbedder:
    """A frozen model and the layer whose embeddings are probed.

    Args:
        model: The model. Of a joint adapter the [CLS] output of each image with `text` is embedded,
            unless it has contrastive scores, whose embedding of the image is taken.
        layer: "pooled" for the embedding, which CLIP compares with texts; "before-projection" for
            what the backbone projects into the shared space last; "patches-K" for the mean of the
            patch tokens of the K-th layer from the end, "class-K" for its class token. Layer 1 is
            the last one; its patches come after the final norm, class tokens before it. All but
            "pooled" are read from the backbone, without what an adapter computes after it.
        text: The one that a joint adapter reads with every image.
    """

    def __init__(self, model: Model, layer: str = "pooled", text: str = TEXT) -> None:
        self.model, self.layer, self.text = model, layer, text
        adapter = model.embeds
        kind, _, number = layer.partition("-")
        depth = int(number) if number.isdigit() else 0
        self._text: Any = None
        if kind == "pooled" and not number:
            self.spec = adapter.image_input
            if isinstance(adapter, JointAdapter):
                self._text = self._prepared(adapter, text)
        elif layer == UNPROJECTED:
            self.spec = FeatureSpec("state", -1)
        elif kind in ("patches", "class") and depth:
            form = "tokens" if kind == "patches" else "state"
            self.spec = FeatureSpec(form, -depth)
            tower = model.backbone.image_tower
            if kind == "class" and not (tower and tower.special):
                raise UserError(
                    f"expected a model with a class token, got {model.backbone.title}: choose "
                    "pooled or patches-K"
                )
        else:
            raise UserError(f"expected {LAYERS} as layer, got {layer!r}: name one")
        model.backbone.check_fits(self.spec, "image")
        if layer == UNPROJECTED:
            self._unprojected(model.backbone.encode_image(self._blank(), self.spec))

    def _prepared(self, adapter: JointAdapter, text: str) -> Any:
        """The fixed text of a joint adapter, as it takes it."""
        if not isinstance(adapter, HasCls):
            raise UserError(
                f"expected an adapter with an embedding of images or a [CLS] token, got "
                f"{type(adapter).__name__}, which has neither: probe its image tower, as with "
                "--layer patches-1"
            )
        backbone = self.model.backbone
        with evaluation_mode(backbone, adapter):
            prepared = adapter.prepare_text(backbone.encode_text([text], adapter.text_input))
            image = adapter.prepare_image(backbone.encode_image(self._blank(), self.spec))
            adapter.cls_outputs(image, prepared)  # fails now if the head reads no [CLS]
        return prepared

    def _blank(self) -> Pixels:
        preprocess = self.model.backbone.preprocess
        return preprocess(Image.new("RGB", (8, 8)))[None].to(self.model.device)

    def _unprojected(self, state: Any) -> Tensor:
        """What the image tower projects last; a `UserError` if it ends with no projection."""
        tower = self.model.backbone.image_tower
        vectors = None if tower is None else tower.unprojected(state)
        if vectors is None:
            raise UserError(
                "expected a model with a projection after its image tower, got "
                f"{self.model.backbone.title}, which has none: choose pooled"
            )
        return vectors

    @property
    def identity(self) -> str:
        """Digest of all weights, the preprocessing and the layer."""
        weights = "" if self.model.untrained else self.model.digest()
        text = [] if self._text is None else [self.text]
        return digest([self.model.backbone.fingerprint, weights, self.layer, *text])

    def embed(self, pixels: Pixels) -> Float[Tensor, "n d"]:
        """Returns embeddings, not normalised, on the CPU."""
        model = self.model
        adapter: Any = model.embeds
        with evaluation_mode(model.backbone, model.adapter):
            features: Any = model.backbone.encode_image(pixels.to(model.device), self.spec)
            if self._text is not None:
                text = self._text[torch.zeros(len(features), dtype=torch.long)]
                vectors = adapter.cls_outputs(adapter.prepare_image(features), text).flatten(1)
            elif self.layer == "pooled":
                vectors = adapter.embed_image(features)
            elif self.layer == UNPROJECTED:
                vectors = self._unprojected(features)
            elif self.spec.kind == "state":
                vectors = features.values[:, 0]
            else:
                # The mean over patches; the mask leaves padding out.
                weights = features.mask[:, :, None].to(features.values.dtype)
                vectors = (features.values * weights).sum(dim=1) / weights.sum(dim=1)
        return vectors.float().cpu()


@dataclass(frozen=True)
class TaskEmbeddings:
    """The images of a split under a task.

    Attributes:
        features: Of each image under each class of the task.
        member: Position of the applied transformation in the class.
        held_out: Whether training never shows that transformation.
        labels: Semantic class of each image, -1 if there are none.
    """

    features: Float[Tensor, "n c d"]
    member: Int[Tensor, "n c"]
    held_out: Bool[Tensor, "n c"]
    labels: Int[Tensor, "n"]


def embed_tasks(
    embedder: LayerEmbedder,
    images: Sequence[LabelledImage],
    tasks: Sequence[Task],
    store: Path,
    side: int = 224,
    seed: int = 0,
) -> dict[str, dict[str, TaskEmbeddings]]:
    """Returns the embeddings by task and split; those that the store lacks are computed.

    Args:
        embedder: The model.
        images: The images.
        tasks: Tasks whose transformations can all run.
        store: Folder of feature stores.
        side: The middle square of each image is scaled to this side before it is transformed.
        seed: Of the sampled transformations.
    """
    wanted: dict[str, tuple[LabelledImage, Version]] = {}
    chosen: dict[str, dict[str, list[list[tuple[str, Version]]]]] = {}
    for task in tasks:
        rows: dict[str, list[list[tuple[str, Version]]]] = {"train": [], "test": []}
        for image in images:
            versions = task.versions(image.digest, image.split, seed)
            keys = [version.key(image.digest, side) for version in versions]
            row = list(zip(keys, versions, strict=True))
            wanted |= {key: (image, version) for key, version in row}
            rows[image.split].append(row)
        chosen[task.name] = rows
    vectors = _stored(embedder, wanted, store, side)
    # Rows and labels have the same order: that of the images of a split.
    numbers = {name: i for i, name in enumerate(label_names(images))}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for image in images:
        labels[image.split].append(numbers.get(image.label, -1))
    embedded: dict[str, dict[str, TaskEmbeddings]] = {task.name: {} for task in tasks}
    for task in tasks:
        for split, of_split in chosen[task.name].items():
            embedded[task.name][split] = _embedded(of_split, task, vectors, labels[split])
    return embedded


def label_names(images: Sequence[LabelledImage]) -> list[str]:
    """The semantic classes; empty if images have no labels, or all the same."""
    names = sorted({image.label for image in images})
    return names if len(names) > 1 else []


def _embedded(
    rows: list[list[tuple[str, Version]]],
    task: Task,
    vectors: Callable[[Sequence[str]], Float[Tensor, "n d"]],
    labels: list[int],
) -> TaskEmbeddings:
    # A row is an image, with a version for each class in the order of the task.
    keys: list[str] = []
    member: list[int] = []
    held_out: list[bool] = []
    for row in rows:
        for one, (key, version) in zip(task.classes, row, strict=True):
            keys.append(key)
            member.append(one.members.index(version.member))
            held_out.append(version.member.held_out)
    shape = len(rows), len(task.classes)
    return TaskEmbeddings(
        vectors(keys).view(*shape, -1),
        torch.tensor(member).view(shape),
        torch.tensor(held_out).view(shape),
        torch.tensor(labels),
    )


def _stored(
    embedder: LayerEmbedder,
    wanted: Mapping[str, tuple[LabelledImage, Version]],
    root: Path,
    side: int,
) -> Callable[[Sequence[str]], Float[Tensor, "n d"]]:
    """Returns the function that reads vectors by key from the store, which it builds if needed."""
    key = StoreKey(embedder.identity, "image", FeatureSpec("pooled"), source_digest(wanted))

    def encode(missing: list[str]) -> Iterator[tuple[Sequence[str], Pooled]]:
        for names, pixels in _batches(embedder.model, wanted, missing, side):
            yield names, Pooled(embedder.embed(pixels))

    def produce() -> Iterator[tuple[Sequence[str], Pooled]]:
        return copy_from(similar_stores(root, key), wanted, encode)  # type: ignore[return-value, arg-type]

    store = open_or_build_store(root, key, produce, len(wanted))

    def read(keys: Sequence[str]) -> Float[Tensor, "n d"]:
        features = store.features(keys)
        assert isinstance(features, Pooled)
        return features.values

    return read


def _batches(
    model: Model,
    wanted: Mapping[str, tuple[LabelledImage, Version]],
    keys: Sequence[str],
    side: int,
) -> Iterator[tuple[list[str], Pixels]]:
    """Yields pixels of transformed images; threads decode each image once for all its versions."""
    by_image: dict[str, list[str]] = {}
    for key in keys:
        by_image.setdefault(wanted[key][0].digest, []).append(key)

    def load(names: list[str]) -> Tensor:
        image, _ = wanted[names[0]]
        base = square(image.open(), side)
        pictures = [wanted[name][1].apply(base) for name in names]
        return torch.stack([model.backbone.preprocess(picture) for picture in pictures])

    # Threads are at most `2 * WORKERS` images ahead, which bounds the memory.
    coming = iter(by_image.values())
    waiting: deque[tuple[list[str], Future[Tensor]]] = deque()
    with ThreadPoolExecutor(WORKERS) as pool:
        for names in islice(coming, 2 * WORKERS):
            waiting.append((names, pool.submit(load, names)))
        while waiting:
            done, future = waiting.popleft()
            for names in islice(coming, 1):
                waiting.append((names, pool.submit(load, names)))
            pixels = future.result()
            for start in range(0, len(done), model.batch_size):
                part = slice(start, start + model.batch_size)
                yield done[part], pixels[part]
