"""Where the images and captions of shard sets lie, by the JSON of all records.

In: shard sets. Out: locations, captions and decoded images. Never: a whole tar in memory.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from vlmtune.data.images import content_digest, open_image
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet, read_headers
from vlmtune.data.tar_records import Damage, RawRecord, Shard
from vlmtune.data.worker_processes import start_method
from vlmtune.errors import UserError
from vlmtune.storage.progress import progress

log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class ImageLocation:
    """The shard of an encoded image, its offset and its size in bytes."""

    shard: Shard
    offset: int
    size: int

    def read(self) -> bytes:
        """Returns the encoded image."""
        with self.shard.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


@dataclass(frozen=True)
class Catalogue:
    """The distinct images of shard sets, in order of appearance, and distinct captions, sorted."""

    images: dict[str, ImageLocation]
    texts: list[str]


def catalogue(sets: Sequence[ShardSet]) -> Catalogue:
    """Lists the images and captions of shard sets; damaged records are left out."""
    images: dict[str, ImageLocation] = {}
    texts: set[str] = set()
    total = sum(data.manifest.records for data in sets)
    with progress("reading records", total) as advance:
        for raw, group, files in read_headers(sets):
            texts.update(group.texts)
            for image, file in zip(group.image_ids, files, strict=True):
                images.setdefault(image, located(raw, file))
            advance(1)
    return Catalogue(images, sorted(texts))  # sorted: a set has another order in each process


def located(raw: RawRecord, file: str) -> ImageLocation:
    """Where an image file of a record lies."""
    offset, size = raw.spans[file]
    return ImageLocation(raw.shard, offset, size)


def image_digests(images: Mapping[str, ImageLocation]) -> dict[str, str]:
    """Returns the `data.images.digest` of each image by id; unreadable images are left out."""
    digests = {}
    with progress("reading images", len(images)) as advance:
        for image, location in images.items():
            with contextlib.suppress(OSError):
                digests[image] = content_digest(location.read())
            advance(1)
    return digests


def _decoded(
    preprocess: Callable[[Any], Tensor], rows: Sequence[tuple[str, ImageLocation]]
) -> list[tuple[str, Tensor | None, str]]:
    """Images as (id, pixels, ""), or (id, None, reason) if they are damaged."""
    decoded: list[tuple[str, Tensor | None, str]] = []
    for image, location in rows:
        try:
            picture = open_image(location.read())
            decoded.append((image, preprocess(picture), ""))
        except (OSError, RecordError) as error:
            damage = Damage(location.shard, image, str(error))
            decoded.append((image, None, str(damage)))
    return decoded


def decoded_images(
    images: dict[str, ImageLocation],
    preprocess: Callable[[Any], Tensor],
    batch_size: int,
    num_workers: int,
    max_damaged: float,
    total: int,
) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "n 3 height width"]]]:
    """Yields ids and preprocessed images, in order, for any number of workers.

    Damaged images are left out, each with a warning. It fails when they are more than the fraction
    `max_damaged` of `total` images, rounded up.
    """
    limit = math.ceil(max_damaged * total)  # rounded up, so that a small set may have one
    loader = DataLoader(
        list(images.items()),  # type: ignore[arg-type]
        batch_size,
        num_workers=num_workers,
        multiprocessing_context=start_method(num_workers),
        collate_fn=partial(_decoded, preprocess),
    )
    damaged: list[str] = []
    for batch in loader:
        good = {}
        for image, pixels, line in batch:
            if pixels is not None:
                good[image] = pixels
                continue
            # The stream only says that such an image has no features.
            log.warning("left out a damaged image: %s", line)
            damaged.append(line)
        if len(damaged) > limit:
            raise UserError(
                f"expected at most {max_damaged:.1%} damaged of {total} images, got "
                f"{len(damaged)} ({damaged[0]}): build the shards again or raise max_damaged"
            )
        if good:
            yield tuple(good), torch.stack(list(good.values()))
