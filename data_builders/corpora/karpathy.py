"""Captioned images in Karpathy's splits, as shards.

In: his JSON and images. Out: one record an image. Never: captions that are sampled.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NotRequired

from pydantic import PositiveInt
from typing_extensions import TypedDict, override

from data_builders.corpora.annotations import inside, parse_json
from data_builders.left_out import Line
from data_builders.measured_images import MeasuredImages, measured_checksums
from data_builders.shard_builder import Record, ShardBuilder, image_group, record_keys
from data_builders.shard_files import all_named
from vlmtune.errors import UserError
from vlmtune.storage.files import check_shape

Row = tuple[str | None, str, list[str]]
"""Split, file and captions of an image; None as split is always written."""


class Sentence(TypedDict):
    """A caption."""

    raw: str


class Image(TypedDict):
    """An image with its captions."""

    filename: str
    filepath: NotRequired[str | None]
    split: str
    sentences: list[Sentence]


class Listed(TypedDict):
    """The content of the JSON."""

    images: list[Image]


class KarpathyBuilder(ShardBuilder):
    """One image with all its different captions a record.

    Args:
        path: The JSON, `{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}]}]}`.
        images: Folder that holds the files, in the subfolders that `filepath` names if any.
        splits: Splits to write, together.
        measured: Files of benchmarks, or folders of them; the images they name are left out, see
            `data_builders.measured`. Folders of images, which are compared by content, see
            `data_builders.measured_images`.
    """

    corpus: ClassVar[str | None] = None
    layout: ClassVar[str] = "Karpathy's caption JSON"

    idle: ClassVar[Mapping[str, Any]] = {"measured": []}

    def __init__(self, path: Path, images: Path, splits: Sequence[str] = ("train",),
                 records_per_shard: PositiveInt = 1000,
                 measured: Sequence[Path] = ()) -> None:  # fmt: skip
        super().__init__(records_per_shard)
        self.path, self.images, self.splits = Path(path), Path(images), tuple(splits)
        self.measured = tuple(map(Path, measured))

    @override
    def sources(self) -> Mapping[str, Path]:
        return {self.path.name: self.path}

    @override
    def checksums(self) -> dict[str, str]:
        return all_named(super().checksums(), measured_checksums(self.measured, every_name=True))

    def parse(self, content: Any) -> list[Row]:
        """Returns split, file and captions of each image of the file."""
        if "annotations" in content:
            raise UserError(
                f"expected {self.layout} at {self.path}, got COCO's own: use `vlmtune build coco`"
            )
        listed: Listed = check_shape(content, Listed, self.path, self.layout)
        rows: list[Row] = []
        for image in listed["images"]:
            folder, name = image.get("filepath"), image["filename"]
            file = f"{folder}/{name}" if folder else name
            captions = distinct_captions(sentence["raw"] for sentence in image["sentences"])
            rows.append((image["split"], file, captions))
        return rows

    @override
    def records(self) -> Iterator[Record]:
        rows = parse_json(self.path, self.layout, self.parse)
        measured = MeasuredImages(self.measured, self.corpus, True, self.exists)
        keys = record_keys(file for _, file, _ in rows)
        splits = sorted({split for split, _, _ in rows if split is not None})
        if splits and not (self.splits and set(self.splits) <= set(splits)):
            raise UserError(
                f"expected splits out of {splits} of {self.path}, got {list(self.splits)}: "
                "correct `splits`"
            )
        for number, (split, file, captions) in enumerate(rows):
            if split is not None and split not in self.splits:
                continue
            path = inside(self.images, file, self.path, f"images[{number}]")
            # Nothing is read where nothing is compared by content.
            digest = measured.digest(path, file) if measured.files else None
            if measured.has(file, digest):
                self.counts["skipped: measured"] += 1
                continue
            if digest is None and (measured.files or not self.exists(path)):
                continue
            if not captions:
                self.left_out.add(Line(str(path), "no caption", unusable=False))
                continue
            self.counts["captions"] += len(captions)
            yield image_group(file, dict.fromkeys(captions, True), key=keys[file]), [path]
        measured.report(self.counts)


def distinct_captions(raws: Iterable[str]) -> list[str]:
    """Returns captions with single blanks, each once, without empty ones."""
    return list(dict.fromkeys(filter(None, (" ".join(raw.split()) for raw in raws))))
