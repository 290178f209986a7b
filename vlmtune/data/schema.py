"""The shard record, a `Group` on disk: builders write it and the loader decodes it.

In: groups. Out: JSON, and back. Never: a tar or an image.

A shard is a WebDataset tar. Record `K` is the members `K.0.<ext>`, `K.1.<ext>`, ... (the encoded
images, in order) followed by `K.json`:

    {"version": 1,
     "images": [{"id": "…", "file": "0.png", "true": ["text id", …]}, …],
     "texts":  [{"id": "…", "text": "…"}, …],
     "truth":  [[1, 0], [0, 1]],
     "exhaustive": true}

`true` lists every caption known to be true of the image, in any record. The folder of a shard set
has a `manifest.json` (see `Manifest`).
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.storage.files import Count, check_shape, read_json
from vlmtune.types import Group

VERSION = 1
MANIFEST = "manifest.json"
INDEX = "vlmtune.data.webdataset"  # the builder that the manifest of tars of others names
KEY = re.compile(r"[A-Za-z0-9_\-]+")
EXTENSIONS = ("jpg", "jpeg", "png", "webp")
AGAIN = "build the shards again, or remove the manifest of tars that others wrote"


class RecordError(ValueError):
    """A record breaks the schema; the loader skips, counts and reports it."""


@dataclass(frozen=True)
class ShardInfo:
    """One tar of a shard set: file name, records in it, images in it, bytes and sha256."""

    file: Annotated[str, Field(pattern=r"^[^/\\[:cntrl:]]+\.tar$")]
    records: Count
    images: Count
    bytes: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _consistent(shards: tuple[ShardInfo, ...]) -> tuple[ShardInfo, ...]:
    """Raises an error if two shards have one name, or one is too small for its records."""
    if len({shard.file for shard in shards}) < len(shards):
        raise ValueError("a shard twice")
    for shard in shards:
        if shard.records > shard.bytes // 512:  # the header of a member
            raise ValueError(f"{shard.records} records in the {shard.bytes} bytes of {shard.file}")
    return shards


@dataclass(frozen=True)
class Manifest:
    """The contents of a shard set and how it was built.

    Attributes:
        builder: Class path of the builder.
        arguments: Its constructor arguments.
        sources: sha256 of each annotation file it read, by name.
        shards: The tars, in order.
        counts: Further counts of the builder (texts, skipped records by reason, ...).
        schema_version: `VERSION` at the time of writing.
    """

    builder: str
    arguments: dict[str, Any]
    sources: dict[str, str]
    shards: Annotated[tuple[ShardInfo, ...], Field(min_length=1), AfterValidator(_consistent)]
    counts: dict[str, Count] = field(default_factory=dict)
    schema_version: Literal[1] = VERSION

    @property
    def records(self) -> int:
        """Records in all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def images(self) -> int:
        """Images in all shards."""
        return sum(shard.images for shard in self.shards)

    def to_json(self) -> str:
        """The text of `manifest.json`."""
        return json.dumps(asdict(self), indent=2, sort_keys=True, default=str) + "\n"


def read_manifest(folder: Path, file: Path | None = None) -> Manifest:
    """Reads the manifest of a shard set and checks that its shards are there in full.

    `file` is the manifest if it does not lie beside the shards.
    """
    path = file or Path(folder) / MANIFEST
    if not path.is_file():
        raise UserError(
            f"expected a folder of shards with {MANIFEST}, got {str(folder)!r}: "
            "run `vlmtune build` first or name another folder; a table goes to `fit --data`"
        )
    manifest = parse_manifest(path, str(path))
    # Sizes tell of a copy that broke off; the sha256 of every tar would take hours.
    for shard in manifest.shards:
        file = Path(folder) / shard.file
        got = f"{file.stat().st_size} bytes" if file.is_file() else "no such file"
        if got != f"{shard.bytes} bytes":
            raise UserError(
                f"expected {shard.bytes} bytes in shard {file}, got {got}: build the shards again"
            )
    return manifest


def parse_manifest(path: Path, shown: str) -> Manifest:
    """Reads a manifest, without a look at its shards; `shown` names it in errors."""
    raw = read_json(path, "a manifest", AGAIN)
    return check_shape(raw, Manifest, shown, "a manifest", AGAIN)


def encode(group: Group, extensions: Sequence[str]) -> dict[str, Any]:
    """Returns the JSON part of a record; image i goes beside it as `<i>.<extensions[i]>`."""
    images = []
    for image, true, extension in zip(group.image_ids, group.true_ids, extensions, strict=True):
        file = f"{len(images)}.{extension}"
        images.append({"id": image, "file": file, "true": sorted(true)})
    named = zip(group.text_ids, group.texts, strict=True)
    texts = [{"id": text_id, "text": text} for text_id, text in named]
    return {
        "version": VERSION,
        "images": images,
        "texts": texts,
        "truth": group.truth.int().tolist(),
        "exhaustive": group.exhaustive,
    }


class _Image(TypedDict):
    id: str
    file: Annotated[str, Field(pattern=rf"^[0-9]+\.({'|'.join(EXTENSIONS)})$")]
    true: list[str]


class _Text(TypedDict):
    id: str
    text: str


class _Record(TypedDict):
    version: Literal[1]
    images: list[_Image]
    texts: list[_Text]
    truth: Annotated[list[list[bool]], Field(min_length=1)]
    exhaustive: bool


_RECORD = TypeAdapter(_Record)


def decode(key: str, record: Any) -> tuple[Group, tuple[str, ...]]:
    """Returns a record's group without images and the names of its images, from its JSON."""
    try:
        valid = _RECORD.validate_python(record)
        truth = torch.tensor(valid["truth"], dtype=torch.bool)
    except ValueError as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            location = "/".join(map(str, first["loc"]))
            reason = f"{first['msg']} at {location}"
        raise RecordError(f"malformed record: {reason}") from error
    images = valid["images"]
    texts = valid["texts"]
    group = Group(
        key=key,
        image_ids=tuple(image["id"] for image in images),
        text_ids=tuple(text["id"] for text in texts),
        texts=tuple(text["text"] for text in texts),
        truth=truth,
        true_ids=tuple(frozenset(image["true"]) for image in images),
        exhaustive=valid["exhaustive"],
    )
    check(group)
    return group, tuple(image["file"] for image in images)


def check(group: Group) -> None:
    """Raises `RecordError` if a group breaks the schema.

    Example:
        >>> true = torch.ones(1, 1, dtype=torch.bool)
        >>> try:
        ...     check(Group("a", ("i",), ("t",), (" ",), true, (frozenset("t"),)))
        ... except RecordError as error:
        ...     print(error)
        text 't' is blank
    """
    flaw = next(_flaws(group), None)  # later checks rely on what earlier ones found right
    if flaw is not None:
        raise RecordError(flaw)


def _flaws(group: Group) -> Iterator[str]:
    shape = (len(group.image_ids), len(group.text_ids))
    if not KEY.fullmatch(group.key):
        yield f"key {group.key!r} has characters other than letters, digits, _ and -"
    if 0 in shape:
        yield f"{shape[0]} images and {shape[1]} texts; both must be at least 1"
    if tuple(group.truth.shape) != shape:
        yield f"truth has shape {tuple(group.truth.shape)}, expected {shape}"
    for kind, ids in (("image", group.image_ids), ("text", group.text_ids)):
        (again, count), *_ = Counter(ids).most_common(1)
        if count > 1:
            yield f"{kind} id {again!r} occurs twice"
    for text_id, text in zip(group.text_ids, group.texts, strict=True):
        if not text.strip():
            yield f"text {text_id!r} is blank"
    # A record states twice what is true in it: by ids, and by a matrix.
    known = set(group.text_ids)
    rows = group.truth.tolist()
    for i, true in enumerate(group.true_ids):
        stated = set(itertools.compress(group.text_ids, rows[i]))
        if stated != true & known:
            yield f"`true` of image {group.image_ids[i]!r} contradicts `truth`"
