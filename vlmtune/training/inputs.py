"""Features of a training batch: read from the store where they are kept, else computed."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from vlmtune.backbones.base import Backbone
from vlmtune.features.store import (
    FeatureStore,
    StoreKey,
    locked,
    make_root,
    open_or_build,
    shared,
    source_digest,
)
from vlmtune.training.recompute import in_chunks
from vlmtune.types import Batch, Features, FeatureSpec, concatenate

Modality = Literal["image", "text"]
StoreDType = Literal["float32", "float16", "bfloat16"]
Encode = Callable[[list[str]], Iterable[tuple[Sequence[str], Features]]]
TEXTS_AT_A_TIME = 512


class ImageStore:
    """A store of images, whose rows go by their content, asked for images by their ids.

    Args:
        store: The store.
        digests: The row of each image id.
    """

    def __init__(self, store: FeatureStore, digests: Mapping[str, str]) -> None:
        self.store, self.digests = store, digests

    def __contains__(self, name: str) -> bool:
        return self.digests.get(name, "") in self.store

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of images, in the order of `ids`.

        Raises:
            UserError: One is not in the store.
        """
        return self.store.features([self.digests.get(name, name) for name in ids])


class Inputs:
    """Images and texts of batches as one representation each.

    Frozen representations are computed without gradient and with the backbone in evaluation, so
    that they are the same whether they come from a store or not.

    Args:
        backbone: What encodes.
        image: The representation of images.
        text: The representation of texts.

    Attributes:
        stored: The open stores.
    """

    def __init__(self, backbone: Backbone, image: FeatureSpec, text: FeatureSpec) -> None:
        self.backbone = backbone
        self.reads: dict[Modality, FeatureSpec] = {"image": image, "text": text}
        self.stored: dict[Modality, FeatureStore | ImageStore] = {}

    def open(self, root: Path, data: Any, fingerprint: str, dtype: StoreDType) -> None:
        """Opens the stores of what is frozen, building those that are missing; words have none.

        Rows go by captions and by the content of images, so that what some store of `root` holds
        (of other shards, or of an evaluation) is copied and not encoded again.

        Args:
            root: Folder of stores.
            data: The datamodule whose images and captions are stored.
            fingerprint: Of the backbone as it was loaded.
            dtype: The type the numbers are stored as.

        Raises:
            UserError: The disk is too small, or features are not finite in `dtype`.
        """

        def opened(modality: Modality, rows: Sequence[str], encode: Encode) -> FeatureStore:
            source = source_digest(rows)
            key = StoreKey(fingerprint, modality, self.reads[modality], source, dtype)
            return open_or_build(root, key, partial(shared, root, key, rows, encode), len(rows))

        if self.reads["image"].frozen:
            digests = image_digests(root, data)
            encode = partial(self._encode_images, data, digests)
            store = opened("image", list(dict.fromkeys(digests.values())), encode)
            self.stored["image"] = ImageStore(store, digests)
        if self.reads["text"].frozen and self.reads["text"].kind != "words":  # those are a table
            self.stored["text"] = opened("text", data.distinct_texts(), self._encode_texts)

    def _encode_images(
        self, data: Any, digests: Mapping[str, str], rows: Sequence[str]
    ) -> Iterable[tuple[Sequence[str], Features]]:
        wanted, chosen = set(rows), {}
        for image, digest in digests.items():
            if digest in wanted:
                chosen.setdefault(digest, image)
        for ids, pixels in data.distinct_images(self.backbone.preprocess, chosen.values()):
            with frozen(self.backbone):
                features = self.backbone.encode_image(
                    pixels.to(self.backbone.device), self.reads["image"]
                )
            yield [digests[image] for image in ids], features.to("cpu")

    def _encode_texts(self, texts: Sequence[str]) -> Iterable[tuple[Sequence[str], Features]]:
        texts = sorted(texts, key=len)  # those of one length together: little padding is computed
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            block = tuple(texts[start : start + TEXTS_AT_A_TIME])
            with frozen(self.backbone):
                features = self.backbone.encode_text(block, self.reads["text"])
            yield block, features.to("cpu")

    def all(self, modality: Modality, batch: Batch, chunk: int | None = None) -> Features:
        """Returns the features of all images or all texts of a batch.

        Args:
            modality: Which of them.
            batch: The batch.
            chunk: How many are encoded at a time; None for all.
        """
        rows = len(batch.image_ids if modality == "image" else batch.texts)
        if modality in self.stored:
            chunk = None
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.reads[modality].frozen):
            return in_chunks(partial(self.some, modality, batch), rows, chunk, self.backbone.device)

    def some(self, modality: Modality, batch: Batch, rows: slice) -> Features:
        """Returns the features of the chosen images or texts of a batch.

        Captions that are not in the store, such as negatives made during training, are encoded and
        rounded to the type of the store.
        """
        if modality == "image":
            return self._images(batch, rows)
        store = self.stored.get("text")
        if not isinstance(store, FeatureStore):
            return self._encoded(batch.texts[rows])
        return self._texts(batch.texts[rows], store)

    def _images(self, batch: Batch, rows: slice) -> Features:
        if "image" in self.stored:
            return self.stored["image"].features(batch.image_ids[rows]).to(self.backbone.device)
        assert batch.pixels is not None
        with frozen(self.backbone, self.reads["image"].frozen):
            return self.backbone.encode_image(batch.pixels[rows], self.reads["image"])

    def _texts(self, texts: Sequence[str], store: FeatureStore) -> Features:
        device = self.backbone.device
        known = [text for text in texts if text in store]
        missing = [text for text in texts if text not in store]
        if not missing:
            return store.features(texts).to(device)
        dtype = getattr(torch, store.meta["key"]["dtype"])
        parts = [self._encoded(missing).to(device, dtype).to(device, torch.float32)]
        if known:
            parts.insert(0, store.features(known).to(device))
        at = {text: row for row, text in enumerate([*known, *missing])}
        order = torch.tensor([at[text] for text in texts], device=device)
        return concatenate(parts)[order]

    def _encoded(self, texts: Sequence[str]) -> Features:
        with frozen(self.backbone, self.reads["text"].frozen):
            return self.backbone.encode_text(texts, self.reads["text"])


def image_digests(root: Path, data: Any) -> dict[str, str]:
    """Digests of the content of a corpus' images by id, read from its shards once and then kept.

    Args:
        root: Folder of stores, in which they are kept.
        data: The datamodule of the corpus.

    Raises:
        UserError: `root` cannot be made.
    """
    corpus = source_digest([data.digest("train"), data.digest("val")])
    path = Path(root) / f"images-{corpus[:16]}.json"
    make_root(Path(root))
    with locked(path):
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(known, dict) and known.keys() == set(data.image_ids()):
                return known
        digests = data.image_digests()
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(digests), encoding="utf-8")
        temporary.replace(path)
    return digests


@contextlib.contextmanager
def frozen(backbone: Backbone, really: bool = True) -> Iterator[None]:
    """Runs a backbone without gradient and in evaluation, then sets it back."""
    if not really:
        yield
        return
    training = [module for module in backbone.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
