"""`vlmtune neighbours`: mines the images of a corpus that are hard to tell apart.

In: shards and a model. Out: the folder of a similarity cache, on stdout.
Never: a change of the shards.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlmtune.backbones.base import Backbone
from vlmtune.backbones.weights import digest
from vlmtune.cli.plugins import find_device
from vlmtune.data.catalogue import Corpus, corpus, decode_image, decoded_images, image_digests
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.evaluation.scorer import Scorer
from vlmtune.export import resolve
from vlmtune.export.model import Model
from vlmtune.features.encode import FeatureSource
from vlmtune.features.store import FeatureStore
from vlmtune.mining.build import Score, open_or_build
from vlmtune.mining.cache import CacheKey
from vlmtune.types import FeatureSpec, Pooled

MAX_DAMAGED = 0.01
ROWS = 1024


def run(options: argparse.Namespace) -> None:
    """Builds the similarity cache of `options.shards` under `options.out` and prints its folder.

    An interrupted build continues. The features of images are stored in `options.store`, or else
    beside the cache.
    """
    device = find_device(options.device)
    model = _resolve(options.model, options.pretrained, device)
    compared = model if options.features is None else _resolve(options.features, None, device)
    known = corpus([ShardSet(str(folder)) for folder in options.shards])
    # If an adapter trains the image tower, features are not those of the pre-trained backbone.
    frozen = compared.adapter.image_input.frozen
    fingerprint = compared.backbone.fingerprint if frozen else _digest(compared)
    key = CacheKey(
        backbone=fingerprint,
        scorer="" if options.images_only else _digest(model),
        source=known.digest,
        neighbours=options.neighbours,
    )
    digests = image_digests(known.images)
    root = Path(options.store or options.out)
    store = _store(root, compared.backbone, fingerprint, known, digests, options.batch_size)
    images = [image for image in known.images if digests.get(image, "") in store]
    cache = open_or_build(
        options.out,
        key,
        {image: known.captions[image] for image in images},
        lambda: _vectors(store, [digests[image] for image in images], device),
        None if options.images_only else _score(model, known, options.batch_size),
    )
    print(cache.folder)


def _resolve(name: str, pretrained: str | None, device: torch.device) -> Model:
    model = resolve(name, pretrained)
    model.backbone.to(device)
    model.adapter.to(device)
    return model


def _digest(model: Model) -> str:
    return digest(model.adapter.spec(), nn.ModuleList([model.backbone, model.adapter]))


def _store(
    root: Path,
    backbone: Backbone,
    fingerprint: str,
    known: Corpus,
    digests: dict[str, str],
    batch_size: int,
) -> FeatureStore:
    """Opens the store of the images' features, by the digest of their content."""
    spec = _image_spec(backbone)
    locations = {digest: known.images[image] for image, digest in reversed(digests.items())}

    def pixels(names: Sequence[str]) -> Iterable[tuple[Sequence[str], Tensor]]:
        chosen = {name: locations[name] for name in names}
        preprocess, total = backbone.preprocess, len(locations)
        return decoded_images(chosen, preprocess, batch_size, 0, MAX_DAMAGED, total)

    source = FeatureSource(backbone, spec, spec, root, batch_size, fingerprint=fingerprint)
    return source.store("image", list(dict.fromkeys(digests.values())), pixels)


def _image_spec(backbone: Backbone) -> FeatureSpec:
    """Returns embeddings, or tokens if a fusion encoder has no embeddings; their mean is taken."""
    for spec in (FeatureSpec("pooled"), FeatureSpec("tokens")):
        reason = backbone.fits(spec, "image")
        if reason is None:
            return spec
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
    """Returns a function that scores images of the corpus; small features stay in memory."""
    adapter = model.adapter
    small = {adapter.image_input.kind, adapter.text_input.kind} == {"pooled"}
    shared = Scorer(model.backbone, adapter, None, batch_size)

    def score(
        images: Sequence[str], captions: Sequence[str], pairs: Int[Tensor, "P 2"]
    ) -> Float[Tensor, "P"]:
        pictures = [decode_image(known.images[image]) for image in images]
        scorer = shared if small else Scorer(model.backbone, adapter, None, batch_size)
        return scorer(pictures, captions, pairs)

    return score
