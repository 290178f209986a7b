"""The images and captions of shard sets: reads the JSON of all records, then images by location.

Shard sets come in; ids, captions, locations and decoded images go out. It never reads a whole tar.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vlmtune.data.images import content_digest, open_image
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import Damage, ShardSet, read_headers
from vlmtune.errors import UserError

log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class ImageLocation:
    """Where an encoded image lies: its shard, offset and size in bytes."""

    shard: Path
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
    for raw, group, files in read_headers(sets):
        texts.update(group.texts)
        for image, file in zip(group.image_ids, files, strict=True):
            images.setdefault(image, ImageLocation(raw.shard, *raw.spans[file]))
    return Catalogue(images, sorted(texts))


def image_digests(images: Mapping[str, ImageLocation]) -> dict[str, str]:
    """Returns the `data.images.digest` of each image by id; unreadable images are left out."""
    digests = {}
    for image, location in images.items():
        with contextlib.suppress(OSError):
            digests[image] = content_digest(location.read())
    return digests


class _Images(Dataset):
    """Image i as (id, pixels, ""), or (id, None, reason) if it is damaged."""

    def __init__(
        self, images: dict[str, ImageLocation], preprocess: Callable[[Any], Tensor]
    ) -> None:
        self.images, self.preprocess = list(images.items()), preprocess

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[str, Tensor | None, str]:
        image, location = self.images[index]
        try:
            return image, self.preprocess(open_image(location.read())), ""
        except (OSError, RecordError) as error:
            return image, None, str(Damage(location.shard, image, str(error)))


def decoded_images(
    images: dict[str, ImageLocation],
    preprocess: Callable[[Any], Tensor],
    batch_size: int,
    num_workers: int,
    max_damaged: float,
    total: int | None = None,
) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "n 3 height width"]]]:
    """Yields ids and preprocessed images, in order, for any number of workers.

    Damaged images are left out, each with a warning that says why.

    Args:
        images: Which images.
        preprocess: Turns an image into pixels.
        batch_size: Images in a batch.
        num_workers: Processes that decode; 0 for this one.
        max_damaged: Fraction of `total` that may be left out (rounded up).
        total: Number of images that the fraction counts; None for `images`.
    """
    loader = DataLoader(
        _Images(images, preprocess), batch_size, num_workers=num_workers, collate_fn=list
    )
    damaged: list[str] = []
    total = len(images) if total is None else total
    for rows in loader:
        lines = [line for _, pixels, line in rows if pixels is None]
        for line in lines:  # the stream only says that such an image has no features
            log.warning("left out a damaged image: %s", line)
        damaged += lines
        if len(damaged) > math.ceil(max_damaged * total):
            raise UserError(
                f"expected at most {max_damaged:.1%} damaged of {total} images, got "
                f"{len(damaged)} ({damaged[0]}): build the shards again or raise max_damaged"
            )
        good = [(image, pixels) for image, pixels, _ in rows if pixels is not None]
        if good:
            yield tuple(image for image, _ in good), torch.stack([pixels for _, pixels in good])
