"""Records by their images: where each record lies in its tar, and which captions are true of which.

Shard sets come in; an index, from which single records are read, and a corpus go out. It never
reads a whole tar.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vlmtune.data.catalogue import ImageLocation
from vlmtune.data.images import open_image
from vlmtune.data.schema import RecordError
from vlmtune.data.shards import RawRecord, ShardSet, decode_group, read_headers
from vlmtune.types import Group


@dataclass(frozen=True)
class RecordLocation:
    """Where a record lies: its shard, its key, offset and size in bytes of each member."""

    shard: Path
    key: str
    spans: dict[str, tuple[int, int]]

    def read(self, images: bool = True) -> Group:
        """Reads and decodes the record, with its images unless told otherwise.

        Raises:
            RecordError: It cannot be read, breaks the schema, or an image cannot be decoded.
        """
        members = {}
        try:
            with self.shard.open("rb") as file:
                for name, (offset, size) in self.spans.items():
                    if images or name == "json":
                        file.seek(offset)
                        members[name] = file.read(size)
        except OSError as error:
            raise RecordError(f"cannot be read ({error.strerror})") from error
        return decode_group(RawRecord(self.shard, self.key, members, self.spans), images)


@dataclass(frozen=True)
class RecordIndex:
    """The records of shard sets.

    Attributes:
        records: Where they are, in order.
        of_image: By image id, the number of the first record that has the image.
    """

    records: list[RecordLocation]
    of_image: dict[str, int]


@dataclass(frozen=True)
class Corpus:
    """The distinct images of shard sets and their true captions.

    Attributes:
        images: Where each image lies, by id, in order of appearance.
        captions: By image id, the captions true of the image, each once, sorted.
        digest: `corpus_digest` of the sets.
    """

    images: dict[str, ImageLocation]
    captions: dict[str, tuple[str, ...]]
    digest: str


def record_index(sets: Sequence[ShardSet]) -> RecordIndex:
    """Locates every record; damaged records are left out."""
    records: list[RecordLocation] = []
    of_image: dict[str, int] = {}
    for raw, group, _ in read_headers(sets):
        for image in group.image_ids:
            of_image.setdefault(image, len(records))
        records.append(RecordLocation(raw.shard, raw.key, raw.spans))
    return RecordIndex(records, of_image)


def corpus(sets: Sequence[ShardSet]) -> Corpus:
    """Locates every image and collects its captions; damaged records are left out.

    A caption that is true of an image under any id is true of it.
    """
    images: dict[str, ImageLocation] = {}
    true: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    for raw, group, files in read_headers(sets):
        texts.update(zip(group.text_ids, group.texts, strict=True))
        described = zip(group.image_ids, files, group.true_ids, group.truth.tolist(), strict=True)
        for image, file, ids, row in described:
            images.setdefault(image, ImageLocation(raw.shard, *raw.spans[file]))
            here = (name for name, yes in zip(group.text_ids, row, strict=True) if yes)
            true.setdefault(image, set()).update(ids, here)
    captions = {
        image: tuple(sorted({texts[name] for name in ids if name in texts}))
        for image, ids in true.items()
    }
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
    sums = "\n".join(sorted({data.digest() for data in sets}))
    return hashlib.sha256(sums.encode()).hexdigest()
