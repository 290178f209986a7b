"""A table of captioned images as shards.

In: the table. Out: one record an image or pair of images. Never: an image in two splits, two
records of one image whose captions exclude each other, or a bad row that is not listed.
"""

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Lt
from pydantic import PositiveInt
from typing_extensions import override

from data_builders.left_out import Line
from data_builders.measured_images import MeasuredImages, measured_checksums
from data_builders.shard_builder import (
    Record,
    ShardBuilder,
    image_group,
    images_group,
    tar_key,
)
from data_builders.shard_files import all_named, listed_image, summed
from vlmtune.data.distinct_images import HELD_OUT, TRAIN, DistinctImages, training_splits
from vlmtune.data.table_rows import Table, TableRow
from vlmtune.data.tables import source_files
from vlmtune.errors import UserError
from vlmtune.language.canonical import canonical


class TableBuilder(ShardBuilder):
    """Captioned images of a table: csv, tsv, JSON, JSON lines, Parquet, a dataset, a folder.

    Columns hold an image (a file or encoded bytes), captions, hard-negative captions, a
    hard-negative image, an id and a split; a caption cell may be a list. Rows of one image, by its
    content, make one record with all their captions. A row with a hard-negative image makes a
    record of both images, whose hard-negative captions are the true ones of the second.

    Left out are rows whose image is missing or cannot be decoded, rows with too many or too few
    cells, rows without a caption, and rows that repeat another one. They are counted, and listed
    by their lines in `left_out.txt` next to the shards.

    Args:
        path: The table: a `.csv`, `.tsv`, `.jsonl`, `.json`, `.parquet` or `.arrow`, a folder that
            `datasets` saved, or a folder of images each with a `.txt` or `.json`.
        images: Folder that the names of images start from; by default the table's folder.
        columns: Columns by what they hold, as `columns.caption title`, out of image, caption,
            negative, negative_image, id, split, votes and group; null for none. The others are
            guessed by their names, and the guesses are printed.
        splits: Values of the split column to write; by default the training split.
        held_out: Fraction of the images that are held out of a table without a split column: their
            split is "val", all others are "train".
        measured: Benchmarks whose images are left out: folders of images and tables next to their
            images, by content, or annotation files, by name. Similar images are reported.
        records_per_shard: Number of records in one tar.
    """

    def __init__(
        self,
        path: Path,
        images: Path | None = None,
        columns: dict[str, list[str] | str | None] | None = None,
        splits: Sequence[str] | None = None,
        held_out: Annotated[float, Ge(0), Lt(1)] = 0.0,
        measured: Sequence[Path] = (),
        records_per_shard: PositiveInt = 1000,
    ) -> None:
        super().__init__(records_per_shard)
        folder = None if images is None else Path(images)
        self.table = Table(Path(path), folder, columns)
        self.splits = None if splits is None else tuple(splits)
        self.held_out, self.measured = held_out, tuple(map(Path, measured))
        # The rows of each image, by its id: number, place and the name of the image.
        self._rows_of: dict[str, list[tuple[int, str, str]]] = {}

    @override
    def sources(self) -> Mapping[str, Path]:
        files = source_files(self.table.path)
        return {str(file.relative_to(self.table.path.parent)): file for file in files}

    @override
    def checksums(self) -> dict[str, str]:
        """The table, or all files of a folder as one, and the names, sizes and times of images."""
        sums = super().checksums()
        if self.table.path.is_dir():
            sums = {self.table.path.name: summed(f"{name} {x}" for name, x in sums.items())}
        images = {"images": summed(self._listing())}
        return all_named(sums, measured_checksums(self.measured), images)

    @override
    def lines(self, image: str, source: bytes | Path, reason: str, detail: str) -> Iterator[Line]:
        for number, where, name in self._rows_of[image]:
            subject = f"{name} ({detail})" if detail else name
            yield Line(where, reason, subject, number)

    @override
    def records(self) -> Iterator[Record]:
        print(self.table.summary(), file=sys.stderr)
        self.left_out.unit = "rows"
        self._rows_of.clear()
        images = DistinctImages(self._chosen_splits(), self.held_out)
        # All rows are read before the first is written: other rows of an image may follow.
        rows = self._gathered(images)
        keys: set[str] = set()
        written: set[bytes] = set()
        for row, digests in zip(self._rows(), rows, strict=True):
            if not digests:
                continue
            if not images.writes(row, digests):
                moved = images.in_another_split(row, digests)
                self.counts[f"skipped: {'image also in ' if moved else ''}another split"] += 1
                continue
            if len(digests) == 2:
                yield self._pair(row, digests, images, keys)
            elif digests[0] not in written:
                written.add(digests[0])
                yield self._single(row, digests[0], images, keys)

    def _rows(self) -> Iterator[TableRow]:
        """The rows that can be read; `_gathered` lists all other rows."""
        return self.table.rows(unusable=lambda where, wrong: None)

    def _listing(self) -> Iterator[str]:
        last, line = None, ""
        for row in self._rows():
            for image in (row.image, row.negative_image):
                if not isinstance(image, Path):
                    continue
                if image is not last:  # the table gives one path for the rows of an image
                    last, line = image, listed_image(image, self.table.folder)
                yield line

    def _chosen_splits(self) -> tuple[str, ...] | None:
        column = self.table.columns["split"]
        if column and self.held_out:
            raise UserError(
                f"expected `held_out` for a table without splits, {self.table.path} has the column "
                f"{column[0]!r}: leave it out, or set `columns.split` to null"
            )
        if not column and not self.held_out:
            if self.splits:
                raise UserError(
                    f"expected a column of splits in {self.table.path} for splits "
                    f"{list(self.splits)}, got none: name it by `columns.split`, or use `held_out`"
                )
            return None
        known = {TRAIN, HELD_OUT} if self.held_out else {row.split for row in self._rows()}
        chosen = training_splits(known) if self.splits is None else self.splits
        if not chosen:
            raise UserError(
                f"expected `splits` for {self.table.path}, none of whose splits {sorted(known)} is "
                f"called train, got none: name some, as --splits '[{max(known)}]'"
            )
        if not set(chosen) <= known:
            raise UserError(
                f"expected splits out of {sorted(known)} of {self.table.path}, got "
                f"{list(chosen)}: correct `splits`"
            )
        return chosen

    def _gathered(self, images: DistinctImages) -> list[tuple[bytes, ...]]:
        """The digests of the images of each row, none for a row that is left out."""
        measured = MeasuredImages(self.measured)
        gathered: list[tuple[bytes, ...]] = []
        repeated: dict[tuple[object, ...], str] = {}
        for row in self.table.rows(self._unreadable):
            self.left_out.total += 1
            digests = self._usable(row, measured)
            if digests and any(map(measured.has, (row.name, row.negative_name), digests)):
                self.counts["skipped: measured"] += 1
                digests = ()
            if digests:
                known = (digests, row.captions, row.negatives, row.split)
                first = repeated.setdefault(known, row.where)
                if first != row.where:
                    self._leave_out(row.where, "repeated row", first, unusable=False)
                    digests = ()
            if digests:
                images.add(row, digests)
                for digest, name in zip(digests, (row.name, row.negative_name), strict=False):
                    of_image = self._rows_of.setdefault(images.images[digest].id, [])
                    of_image.append((self.left_out.total, row.where, name))
            gathered.append(digests)
        images.finish()
        measured.report(self.counts)
        return gathered

    def _leave_out(self, where: str, reason: str, detail: str, unusable: bool = True) -> None:
        self.left_out.add(Line(where, reason, detail, self.left_out.total, unusable))

    def _unreadable(self, where: str, wrong: str) -> None:
        """Lists and counts a row whose cells tell nothing."""
        self.left_out.total += 1
        self._leave_out(where, "unreadable row", wrong)

    def _usable(self, row: TableRow, measured: MeasuredImages) -> tuple[bytes, ...]:
        """The digests of the images of a row; none, and it is listed, if it cannot be used."""
        pair = [(row.image, row.name)]
        if row.negative_image is not None:
            pair.append((row.negative_image, row.negative_name))
        digests: list[bytes] = []
        for image, name in pair:
            digest = measured.digest(image, name)
            if digest is None:
                self._leave_out(row.where, "image missing", name)
                return ()
            digests.append(digest)
        if not row.captions:
            self._leave_out(row.where, "no caption", row.name, unusable=False)
            return ()
        if len(set(digests)) < len(digests):
            raise UserError(
                f"expected two images in {row.where}, got the same content twice, in "
                f"{row.name!r} and {row.negative_name!r}: name another negative image"
            )
        return tuple(digests)

    def _single(
        self, row: TableRow, digest: bytes, images: DistinctImages, keys: set[str]
    ) -> Record:
        """All captions of an image. A negative that is true of it in another row is left out."""
        image = images.images[digest]
        true = set(map(canonical, image.true))
        false = [text for text in image.negatives if canonical(text) not in true]
        left_out = len(image.negatives) - len(false)
        self.counts["captions"] += len(image.captions)
        self.counts["hard negatives"] += len(false)
        self.counts["skipped: hard negative true in another row"] += left_out
        texts = {**dict.fromkeys(image.captions, True), **dict.fromkeys(false, False)}
        key = _key(row, [digest], keys)
        return image_group(image.id, texts, image.true, key=key), [row.image]

    def _pair(
        self, row: TableRow, digests: Sequence[bytes], images: DistinctImages, keys: set[str]
    ) -> Record:
        """Both images of a row with the captions of both."""
        pair = [images.images[digest] for digest in digests]
        texts = (*row.captions, *row.negatives)
        self.counts["captions"] += len(texts)
        self.counts["pairs of images"] += 1
        key, ids = _key(row, digests, keys), [image.id for image in pair]
        # Another row may state a caption of the one image of the other, in other letters.
        true = []
        for image in pair:
            known = set(map(canonical, image.true))
            true.append({*image.true, *(text for text in texts if canonical(text) in known)})
        group = images_group(key, ids, texts, true)
        assert row.negative_image is not None
        return group, [row.image, row.negative_image]


def _key(row: TableRow, digests: Sequence[bytes], keys: set[str]) -> str:
    """A name for a record, made of the id or the file, that no other record has."""
    codes = [digest.hex()[:12] for digest in digests]
    name = row.id or re.sub(r"\.\w+$", "", row.name) or codes[0]
    plain = tar_key(name)
    numbered = (f"{plain}-{codes[-1]}-{number}" for number in itertools.count(2))
    names = itertools.chain((plain, f"{plain}-{codes[-1]}"), numbered)
    key = next(name for name in names if name not in keys)
    keys.add(key)
    return key
