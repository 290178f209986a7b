"""The images of a training corpus with the captions that are true of them, and its digest.

In: shard sets. Out: locations, captions and decoded images. Never: a whole tar in memory.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from vlmtune.data.catalogue import ImageLocation, located
from vlmtune.data.images import open_image
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import ShardSet, read_headers


@dataclass(frozen=True)
class Corpus:
    """Images and their sorted true captions, both by id, and the `corpus_digest` of the sets."""

    images: dict[str, ImageLocation]
    captions: dict[str, tuple[str, ...]]
    digest: str


def corpus(sets: Sequence[ShardSet]) -> Corpus:
    """Locates every image and collects its captions; damaged records are left out.

    A caption that is true of an image under any id is true of it.
    """
    images: dict[str, ImageLocation] = {}
    true: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    for raw, group, files in read_headers(sets):
        texts.update(zip(group.text_ids, group.texts, strict=True))
        truth = group.truth.tolist()
        for row, image in enumerate(group.image_ids):
            location = located(raw, files[row])
            images.setdefault(image, location)
            # What is true by the matrix of this record, and what the record lists of others.
            true_here = itertools.compress(group.text_ids, truth[row])
            true_of_image = true.setdefault(image, set())
            true_of_image.update(group.true_ids[row], true_here)
    # A record may name captions of its image that only other records have.
    captions = {}
    for image, ids in true.items():
        known = {texts[name] for name in ids if name in texts}
        captions[image] = tuple(sorted(known))
    return Corpus(images, captions, corpus_digest(sets))


def decode_image(location: ImageLocation) -> Image.Image:
    """Reads and decodes an image of a shard; `RecordError` if it is damaged."""
    try:
        content = location.read()
    except OSError as error:
        raise RecordError(f"image cannot be read ({error.strerror})") from error
    return open_image(content)


def corpus_digest(sets: Sequence[ShardSet]) -> str:
    """Hex digest of the records of shard sets, in any order of the sets."""
    digests = {data.digest() for data in sets}
    text = "\n".join(sorted(digests))
    return hashlib.sha256(text.encode()).hexdigest()
