"""Records by the images in them: where each lies in its tar, and which captions are true of which.

One pass over the JSON of shard sets finds both; a record is then read by itself, without its tar.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vlmtune.data.catalogue import ImagePlace
from vlmtune.data.images import open_image
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import RawRecord, ShardSet, decode_group, decode_header, read_records
from vlmtune.types import Group


@dataclass(frozen=True)
class RecordPlace:
    """Where a record lies: its shard, its key, offset and size in bytes of each member."""

    shard: Path
    key: str
    members: dict[str, tuple[int, int]]

    def read(self, images: bool = True) -> Group:
        """Reads and decodes the record, its images only where they are wanted.

        Raises:
            RecordError: It cannot be read, breaks the schema, or an image cannot be decoded.
        """
        found = {}
        try:
            with self.shard.open("rb") as file:
                for name, (offset, size) in self.members.items():
                    if images or name == "json":
                        file.seek(offset)
                        found[name] = file.read(size)
        except OSError as error:
            raise RecordError(f"cannot be read ({error.strerror})") from error
        return decode_group(RawRecord(self.shard, self.key, found, self.members), images)


@dataclass(frozen=True)
class RecordIndex:
    """The records of shard sets.

    Attributes:
        records: Where they are, in order.
        of_image: By image id, the number of the first record that has the image.
    """

    records: list[RecordPlace]
    of_image: dict[str, int]


@dataclass(frozen=True)
class Corpus:
    """The distinct images of shard sets and what is known to be true of them.

    Attributes:
        images: Where each image lies, by id, in order of appearance.
        captions: By image id, the captions true of the image, each once, sorted.
        digest: `corpus_digest` of the sets.
    """

    images: dict[str, ImagePlace]
    captions: dict[str, tuple[str, ...]]
    digest: str


def record_index(sets: Sequence[ShardSet]) -> RecordIndex:
    """Finds every record; damaged ones are left to the stream to report."""
    records: list[RecordPlace] = []
    of_image: dict[str, int] = {}
    for raw, group, _ in _headers(sets):
        for image in group.image_ids:
            of_image.setdefault(image, len(records))
        records.append(RecordPlace(raw.shard, raw.key, raw.places))
    return RecordIndex(records, of_image)


def corpus(sets: Sequence[ShardSet]) -> Corpus:
    """Finds every image and its captions; damaged records are left out.

    Captions go by their words: one that is true under any id is true.
    """
    images: dict[str, ImagePlace] = {}
    true: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    for raw, group, files in _headers(sets):
        texts.update(zip(group.text_ids, group.texts, strict=True))
        described = zip(group.image_ids, files, group.true_ids, group.truth.tolist(), strict=True)
        for image, file, ids, row in described:
            images.setdefault(image, ImagePlace(raw.shard, *raw.places[file]))
            here = (name for name, yes in zip(group.text_ids, row, strict=True) if yes)
            true.setdefault(image, set()).update(ids, here)
    captions = {
        image: tuple(sorted({texts[name] for name in ids if name in texts}))
        for image, ids in true.items()
    }
    return Corpus(images, captions, corpus_digest(sets))


def decode_image(place: ImagePlace) -> Image.Image:
    """Reads and decodes an image of a shard.

    Raises:
        RecordError: It cannot be had.
    """
    try:
        with place.shard.open("rb") as file:
            file.seek(place.offset)
            content = file.read(place.size)
    except OSError as error:
        raise RecordError(f"image cannot be read ({error.strerror})") from error
    return open_image(content)


def corpus_digest(sets: Sequence[ShardSet]) -> str:
    """Hex digest of the records of shard sets, whatever the order of the sets."""
    sums = "\n".join(sorted({data.digest() for data in sets}))
    return hashlib.sha256(sums.encode()).hexdigest()


def _headers(sets: Sequence[ShardSet]) -> Iterator[tuple[RawRecord, Group, tuple[str, ...]]]:
    for data in sets:
        for file, count in zip(data.files, data.counts, strict=True):
            for raw in read_records(file, 0, count, images=False):
                if isinstance(raw, RawRecord):
                    try:
                        group, files = decode_header(raw)
                    except RecordError:
                        continue
                    yield raw, group, files
