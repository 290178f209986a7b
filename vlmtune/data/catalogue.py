"""What is in shard sets, found by reading their JSON alone: every image and every caption, once."""

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
from vlmtune.data.shards import Damage, RawRecord, ShardSet, decode_header, read_records
from vlmtune.errors import UserError

log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class ImagePlace:
    """Where an encoded image lies: its shard, offset and size in bytes."""

    shard: Path
    offset: int
    size: int


@dataclass(frozen=True)
class Catalogue:
    """The distinct images of shard sets, in order of appearance, and distinct captions, sorted."""

    images: dict[str, ImagePlace]
    texts: list[str]


def catalogue(sets: Sequence[ShardSet]) -> Catalogue:
    """Reads the JSON of every record; damaged records are left to the stream to report."""
    images: dict[str, ImagePlace] = {}
    texts: set[str] = set()
    for raw in _records(sets):
        try:
            group, files = decode_header(raw)
        except RecordError:
            continue
        texts.update(group.texts)
        for image, file in zip(group.image_ids, files, strict=True):
            images.setdefault(image, ImagePlace(raw.shard, *raw.places[file]))
    return Catalogue(images, sorted(texts))


def image_digests(images: Mapping[str, ImagePlace]) -> dict[str, str]:
    """Returns by id what tells images apart by their content, as `data.images.digest` does.

    An image that cannot be read is left out.
    """
    found = {}
    for image, place in images.items():
        with contextlib.suppress(OSError):
            found[image] = content_digest(_content(place))
    return found


def _content(place: ImagePlace) -> bytes:
    with place.shard.open("rb") as file:
        file.seek(place.offset)
        return file.read(place.size)


def _records(sets: Sequence[ShardSet]) -> Iterator[RawRecord]:
    for data in sets:
        for file, count in zip(data.files, data.counts, strict=True):
            for raw in read_records(file, 0, count, images=False):
                if isinstance(raw, RawRecord):
                    yield raw


class _Images(Dataset):
    """Image i as (id, pixels, ""), or (id, None, why it cannot be had)."""

    def __init__(self, images: dict[str, ImagePlace], preprocess: Callable[[Any], Tensor]) -> None:
        self.images, self.preprocess = list(images.items()), preprocess

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[str, Tensor | None, str]:
        image, place = self.images[index]
        try:
            return image, self.preprocess(open_image(_content(place))), ""
        except (OSError, RecordError) as error:
            return image, None, str(Damage(place.shard, image, str(error)))


def decoded_images(
    images: dict[str, ImagePlace],
    preprocess: Callable[[Any], Tensor],
    batch_size: int,
    num_workers: int,
    max_damaged: float,
    total: int | None = None,
) -> Iterator[tuple[tuple[str, ...], Float[Tensor, "n 3 height width"]]]:
    """Yields ids and preprocessed images, in order, whatever the number of workers.

    Images that cannot be decoded are left out, each with a warning that says why.

    Args:
        images: Which images.
        preprocess: Turns an image into pixels.
        batch_size: Images in a batch.
        num_workers: Processes that decode; 0 for this one.
        max_damaged: Fraction of the images that may be left out.
        total: Of how many images; None for `images`.

    Raises:
        UserError: More than `max_damaged` of the images (rounded up) cannot be decoded.
    """
    loader = DataLoader(
        _Images(images, preprocess), batch_size, num_workers=num_workers, collate_fn=list
    )
    damaged: list[str] = []
    total = len(images) if total is None else total
    for rows in loader:
        here = [line for _, pixels, line in rows if pixels is None]
        for line in here:  # the stream says only that such an image has no features
            log.warning("left out a damaged image: %s", line)
        damaged += here
        if len(damaged) > math.ceil(max_damaged * total):
            raise UserError(
                f"expected at most {max_damaged:.1%} damaged of {total} images, got "
                f"{len(damaged)} ({damaged[0]}): build the shards again or raise max_damaged"
            )
        good = [(image, pixels) for image, pixels, _ in rows if pixels is not None]
        if good:
            yield tuple(image for image, _ in good), torch.stack([pixels for _, pixels in good])
