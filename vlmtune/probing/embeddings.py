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
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
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
Vectors = Float[Tensor, "n d"]
Read = Callable[[Sequence[str]], Vectors]
"""Gives the embeddings of keys of the store."""
Row = list[tuple[str, Version]]
"""The versions of an image, one for each class of a task, with their keys in the store."""


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
        self.model = model
        self.layer = layer
        self.text = text
        adapter = model.embeds
        # "patches-2" is a kind and a depth; the other layers have no depth.
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
        # Whether there is a projection shows in the output of a tower alone.
        if layer == UNPROJECTED:
            state = model.backbone.encode_image(model.backbone.blank(), self.spec)
            self._unprojected(state)

    def _prepared(self, adapter: Any, text: str) -> Any:
        """The fixed text of a joint adapter, as it takes it."""
        if not hasattr(adapter, "cls_outputs"):
            raise UserError(
                f"expected an adapter with an embedding of images or a [CLS] token, got "
                f"{type(adapter).__name__}, which has neither: probe its image tower, as with "
                "--layer patches-1"
            )
        backbone = self.model.backbone
        with evaluation_mode(backbone, adapter):
            words = backbone.encode_text([text], adapter.text_input)
            prepared = adapter.prepare_text(words)
            pixels = backbone.encode_image(backbone.blank(), self.spec)
            image = adapter.prepare_image(pixels)
            adapter.cls_outputs(image, prepared)  # fails now if the head reads no [CLS]
        return prepared

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
        facts = [self.model.backbone.fingerprint, weights, self.layer]
        if self._text is not None:
            facts.append(self.text)
        return digest(facts)

    def embed(self, pixels: Pixels) -> Vectors:
        """Returns embeddings, not normalised, on the CPU."""
        model = self.model
        with evaluation_mode(model.backbone, model.adapter):
            pixels = pixels.to(model.device)
            features = model.backbone.encode_image(pixels, self.spec)
            vectors = self._vectors(features)
        return vectors.float().cpu()

    def _vectors(self, features: Any) -> Tensor:
        adapter: Any = self.model.embeds
        if self._text is not None:
            # The one text is repeated, as output i is of image i and text i.
            repeats = torch.zeros(len(features), dtype=torch.long)
            image = adapter.prepare_image(features)
            outputs = adapter.cls_outputs(image, self._text[repeats])
            return outputs.flatten(1)
        if self.layer == "pooled":
            return adapter.embed_image(features)
        if self.layer == UNPROJECTED:
            return self._unprojected(features)
        if self.spec.kind == "state":
            return features.values[:, 0]
        # The mean over patches; the mask leaves padding out.
        weights = features.mask[:, :, None].to(features.values.dtype)
        total = (features.values * weights).sum(dim=1)
        return total / weights.sum(dim=1)


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
    # All tasks are read from a store of all their versions: a version of two tasks is there once.
    wanted: dict[str, tuple[LabelledImage, Version]] = {}
    rows: dict[str, dict[str, list[Row]]] = {}
    for task in tasks:
        rows[task.name] = {"train": [], "test": []}
        for image in images:
            row = []
            for version in task.versions(image.digest, image.split, seed):
                key = version.key(image.digest, side)
                row.append((key, version))
                wanted[key] = (image, version)
            rows[task.name][image.split].append(row)
    read = _stored(embedder, wanted, store, side)
    labels = _numbered_labels(images)
    embedded: dict[str, dict[str, TaskEmbeddings]] = {}
    for task in tasks:
        embedded[task.name] = {}
        for split, split_rows in rows[task.name].items():
            embedded[task.name][split] = _embedded(split_rows, task, read, labels[split])
    return embedded


def _numbered_labels(images: Sequence[LabelledImage]) -> dict[str, list[int]]:
    """The semantic class of each image of a split, in the order of the images; -1 for none."""
    # Numbers are of both splits together: a class has one number in both.
    numbers = {name: i for i, name in enumerate(label_names(images))}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for image in images:
        number = numbers.get(image.label, -1)
        labels[image.split].append(number)
    return labels


def label_names(images: Sequence[LabelledImage]) -> list[str]:
    """The semantic classes; empty if images have no labels, or all the same."""
    names = sorted({image.label for image in images})
    return names if len(names) > 1 else []


def _embedded(
    rows: list[Row],
    task: Task,
    vectors: Read,
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
        features=vectors(keys).view(*shape, -1),
        member=torch.tensor(member).view(shape),
        held_out=torch.tensor(held_out).view(shape),
        labels=torch.tensor(labels),
    )


def _stored(
    embedder: LayerEmbedder,
    wanted: Mapping[str, tuple[LabelledImage, Version]],
    root: Path,
    side: int,
) -> Read:
    """Returns the function that reads vectors by key from the store, which it builds if needed."""
    # Rows are vectors of any layer, so the store calls them pooled.
    spec = FeatureSpec("pooled")
    key = StoreKey(embedder.identity, "image", spec, source_digest(wanted))

    def encode(missing: list[str]) -> Iterator[tuple[Sequence[str], Pooled]]:
        for names, pixels in _batches(embedder.model, wanted, missing, side):
            yield names, Pooled(embedder.embed(pixels))

    def produce() -> Iterator[tuple[Sequence[str], Pooled]]:
        # A store of other tasks may have some of the versions, which are then copied.
        return copy_from(similar_stores(root, key), wanted, encode)  # type: ignore[return-value, arg-type]

    store = open_or_build_store(root, key, produce, len(wanted))

    def read(keys: Sequence[str]) -> Vectors:
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
        image, _ = wanted[key]
        by_image.setdefault(image.digest, []).append(key)

    def load(names: list[str]) -> Tensor:
        image, _ = wanted[names[0]]
        base = square(image.open(), side)
        pixels = []
        for name in names:
            _, version = wanted[name]
            picture = version.apply(base)
            pixels.append(model.backbone.preprocess(picture))
        return torch.stack(pixels)

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
