"""Mines the images of a corpus that a model finds hard to tell apart.

In: shards and models. Out: a similarity cache on disk. Never: a change of the shards.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.data.catalogue import decoded_images, image_digests
from vlmtune.data.shards import ShardSet
from vlmtune.errors import UserError
from vlmtune.features.encode import FeatureSource
from vlmtune.features.store import FeatureStore
from vlmtune.mining.build import Score, open_or_build_cache
from vlmtune.mining.cache import CacheKey, SimilarityCache
from vlmtune.mining.corpus import Corpus, corpus, decode_image
from vlmtune.model.model import Model
from vlmtune.types import FeatureSpec, Pooled

MAX_DAMAGED = 0.01  # fraction of images that may be unreadable
ROWS = 1024  # features read at a time


def mine(
    shards: Sequence[Path | str],
    scored: Model | None,
    compared: Model,
    out: Path,
    store: Path | None = None,
    neighbours: int = 128,
    batch_size: int = 256,
) -> SimilarityCache:
    """Builds the similarity cache of `shards` under `out`; an interrupted build continues.

    Args:
        shards: Folders of the training sets, or their URLs.
        scored: Scores the captions of similar images; None to compare images alone.
        compared: The model whose image features are compared.
        out: Folder of caches.
        store: Folder of the stored features of images; `out` by default.
        neighbours: Images kept for each image.
        batch_size: Images encoded at a time.
    """
    sets = [ShardSet(str(folder)) for folder in shards]
    known = corpus(sets)
    # If an adapter trains the image tower, features are not those of the pre-trained backbone.
    frozen = compared.adapter.image_input.frozen
    fingerprint = compared.backbone.fingerprint if frozen else compared.digest()
    scorer = ""
    score = None
    if scored is not None:
        scorer = scored.digest()
        score = _score(scored, known, batch_size)
    # Neither the store nor the batch size changes a number, so neither is in the key.
    key = CacheKey(fingerprint, scorer, known.digest, neighbours)
    digests = image_digests(known.images)
    stored = _store(store or out, compared, fingerprint, known, digests, batch_size)
    # Images that cannot be read have no features.
    readable = [image for image in known.images if digests.get(image, "") in stored]
    # A caption of an image is true of its copies in other sets.
    true: dict[str, set[str]] = {}
    for image in readable:
        true.setdefault(digests[image], set()).update(known.captions[image])
    captions = {image: sorted(true[digests[image]]) for image in readable}

    def features() -> Float[Tensor, "n d"]:
        rows = [digests[image] for image in captions]
        return _vectors(stored, rows, compared.device)

    return open_or_build_cache(out, key, captions, features, score, digests)


def _store(
    root: Path,
    model: Model,
    fingerprint: str,
    known: Corpus,
    digests: dict[str, str],
    batch_size: int,
) -> FeatureStore:
    """Opens the store of the images' features, by the digest of their content."""
    backbone = model.backbone
    spec = _image_spec(model)
    # Of images with one content the first is read.
    locations = {}
    for image, digest in digests.items():
        locations.setdefault(digest, known.images[image])

    def pixels(names: Sequence[str]) -> Iterable[tuple[Sequence[str], Tensor]]:
        chosen = {name: locations[name] for name in names}
        total = len(locations)
        return decoded_images(chosen, backbone.preprocess, batch_size, 0, MAX_DAMAGED, total)

    source = FeatureSource(backbone, spec, spec, root, batch_size, fingerprint=fingerprint)
    distinct = list(dict.fromkeys(digests.values()))
    return source.store("image", distinct, pixels)


def _image_spec(model: Model) -> FeatureSpec:
    """Returns embeddings, or tokens if a fusion encoder has no embeddings; their mean is taken."""
    # Embeddings are the smaller, and the ones that a model compares images by.
    for spec in (FeatureSpec("pooled"), FeatureSpec("tokens")):
        reason = model.backbone.fits(spec, "image")
        if reason is None:
            return spec
    raise UserError(
        f"expected a backbone with image features, got {type(model.backbone).__name__} ({reason}): "
        "name another model with --features"
    )


def _vectors(
    store: FeatureStore, rows: Sequence[str], device: torch.device
) -> Float[Tensor, "n d"]:
    parts = []
    # Tokens are averaged part by part, as all of them would not fit.
    for start in range(0, len(rows), ROWS):
        features = store.features(rows[start : start + ROWS])
        if isinstance(features, Pooled):
            parts.append(features.values)
        else:  # tokens: padding is 0, so a sum over all is one over the tokens
            totals = features.values.sum(dim=1)
            parts.append(totals / features.lengths[:, None])
    return torch.cat(parts).to(device)


def _score(model: Model, known: Corpus, batch_size: int) -> Score:
    """Returns a function that scores images of the corpus; small features stay in memory."""
    adapter = model.adapter
    # A scorer keeps features in memory; the tokens of a corpus would not fit.
    small = adapter.image_input.kind == "pooled" and adapter.text_input.kind == "pooled"
    shared = model.scorer(batch_size=batch_size)

    def score(
        images: Sequence[str], captions: Sequence[str], pairs: Int[Tensor, "P 2"]
    ) -> Float[Tensor, "P"]:
        # Decoded for each tile: the images of a corpus would fill the memory.
        pictures = [decode_image(known.images[image]) for image in images]
        scorer = shared if small else model.scorer(batch_size=batch_size)
        return scorer(pictures, captions, pairs)

    return score
