"""`vlmtune neighbours`: mines the images of a corpus that are hard to tell apart."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.fingerprint import digest
from vlmtune.cli.plugins import find_device
from vlmtune.data.catalogue import ImageLocation, decoded_images, image_digests
from vlmtune.data.records import Corpus, corpus, decode_image
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.export import resolve
from vlmtune.export.model import Model
from vlmtune.features.store import FeatureStore, StoreKey, shared, source_digest
from vlmtune.features.store import open_or_build as open_store
from vlmtune.mining import CacheKey, Score, open_or_build
from vlmtune.types import Features, FeatureSpec, Pooled

MAX_DAMAGED = 0.01
ROWS = 1024


def run(options: argparse.Namespace) -> None:
    """Builds the similarity cache of `options.shards` under `options.out` and names its folder.

    A build that was interrupted goes on where it was. The features of images are kept in
    `options.store`, or else beside the cache.

    Raises:
        UserError: The model or the shards cannot be had, or the model has no image features.
    """
    device = find_device(options.device)
    model = _resolved(options.model, options.pretrained, device)
    compared = model if options.features is None else _resolved(options.features, None, device)
    known = corpus([ShardSet(str(folder)) for folder in options.shards])
    # Where an adapter trains the image tower, features are not those of the backbone as loaded.
    frozen = compared.adapter.image_input.frozen
    name = compared.backbone.fingerprint if frozen else _digest(compared)
    key = CacheKey(
        backbone=name,
        scorer="" if options.images_only else _digest(model),
        source=known.digest,
        neighbours=options.neighbours,
    )
    digests = image_digests(known.images)
    root = options.store or options.out
    store = _store(root, compared.backbone, name, known, digests, options.batch_size)
    rows = [image for image in known.images if digests.get(image, "") in store]
    cache = open_or_build(
        options.out,
        key,
        {image: known.captions[image] for image in rows},
        lambda: _vectors(store, [digests[image] for image in rows], device),
        None if options.images_only else _score(model, known, options.batch_size),
    )
    print(cache.folder)


def _resolved(name: str, pretrained: str | None, device: torch.device) -> Model:
    model = resolve(name, pretrained)
    model.backbone.to(device)
    model.adapter.to(device)
    return model


def _digest(model: Model) -> str:
    return digest(model.adapter.spec(), nn.ModuleList([model.backbone, model.adapter]))


def _store(
    root: Path,
    backbone: Backbone,
    name: str,
    known: Corpus,
    digests: Mapping[str, str],
    batch_size: int,
) -> FeatureStore:
    """Opens the store of the images' features, which go by their content."""
    reads = _reads(backbone)
    by_content: dict[str, ImageLocation] = {}
    for image, content in digests.items():
        by_content.setdefault(content, known.images[image])

    def encode(left: list[str]) -> Iterable[tuple[Sequence[str], Features]]:
        chosen = {content: by_content[content] for content in left}
        batches = decoded_images(
            chosen, backbone.preprocess, batch_size, 0, MAX_DAMAGED, len(by_content)
        )
        for names, pixels in batches:
            with torch.no_grad():
                features = backbone.encode_image(pixels.to(backbone.device), reads)
            yield names, features.to("cpu")

    key = StoreKey(name, "image", reads, source_digest(by_content))
    produce = partial(shared, root, key, list(by_content), encode)
    return open_store(root, key, produce, len(by_content))


def _reads(backbone: Backbone) -> FeatureSpec:
    """Embeddings, or where a fusion encoder has none, tokens, whose mean is taken."""
    for reads in (FeatureSpec("pooled"), FeatureSpec("tokens")):
        reason = backbone.fits(reads, "image")
        if reason is None:
            return reads
    raise UserError(
        f"expected a backbone with image features, got {type(backbone).__name__} ({reason}): "
        "name another model with --features"
    )


def _vectors(
    store: FeatureStore, rows: Sequence[str], device: torch.device
) -> Float[Tensor, "n d"]:
    parts = []
    for start in range(0, len(rows), ROWS):
        features = store.features(rows[start : start + ROWS])
        if isinstance(features, Pooled):
            parts.append(features.values)
        else:
            parts.append(features.values.sum(dim=1) / features.lengths[:, None])
    return torch.cat(parts).to(device)


def _score(model: Model, known: Corpus, batch_size: int) -> Score:
    """Scores images of the corpus; what has few numbers is kept from block to block."""
    adapter = model.adapter
    small = {adapter.image_input.kind, adapter.text_input.kind} == {"pooled"}
    kept = Scorer(model.backbone, adapter, None, batch_size)

    def score(
        images: Sequence[str], captions: Sequence[str], pairs: Int[Tensor, "P 2"]
    ) -> Float[Tensor, "P"]:
        pictures = [decode_image(known.images[image]) for image in images]
        scorer = kept if small else Scorer(model.backbone, adapter, None, batch_size)
        return scorer(pictures, captions, pairs)

    return score
