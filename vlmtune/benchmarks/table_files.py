"""The rows of a user's own table that a benchmark measures.

In: a table of images and captions. Out: its rows of the test split, with image files.
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from vlmtune.benchmarks.files import write_csv, write_image
from vlmtune.benchmarks.votes import VoteOptions
from vlmtune.data.distinct_images import HELD_OUT, DistinctImages
from vlmtune.data.table_columns import Columns
from vlmtune.data.table_rows import Table, TableRow
from vlmtune.data.tables import read_cells
from vlmtune.errors import UserError
from vlmtune.storage.files import check_shape, reading, regular, write_atomically
from vlmtune.types import ImageRef

TEST_SPLITS = ("test", "val", "valid", "validation", "dev")  # the first that a table has
SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})")  # the name of one file of several


@dataclass(eq=False, repr=False)
class TableOptions(VoteOptions):
    """The options that benchmarks of tables share.

    Args:
        path: The table, of any format of `vlmtune build table`.
        images: Folder that the names of images start from; by default the table's folder.
        columns: Columns by what they hold, such as `{caption: title, group: category}`; the others
            are guessed by their names.
        splits: Values of the split column; by default "test", else "val".
        held_out: The fraction that `vlmtune build table --held-out` held out.
        min_votes: How many votes of the column `votes` must agree with a row for it to count.
    """

    path: str
    images: str | None = None
    columns: Columns | None = None
    splits: Sequence[str] | None = None
    held_out: float = 0.0

    def measured_rows(self) -> list[TableRow]:
        """Returns the rows to measure, and prints which column was taken for what."""
        rows = self._of_splits()
        votes = [(row.votes, row.where) for row in rows]
        return self.agreed(rows, votes)

    def _of_splits(self) -> list[TableRow]:
        images = None if self.images is None else Path(self.images)
        table = Table(Path(self.path), images, self.columns)
        print(table.summary(), file=sys.stderr)
        rows = list(table.rows())
        # A blank cell names a group as well: metrics need a name.
        if table.columns["group"]:
            rows = [replace(row, group=row.group or "none") for row in rows]
        # The builder leaves out images, not rows, so that no image is on both sides.
        if self.held_out:
            return _held_out(rows, self.held_out)
        known = {row.split for row in rows} if table.columns["split"] else set()
        if self.splits is None and not known:
            return rows
        chosen = self.splits
        wanted = list(chosen or ())
        if chosen is None:
            chosen = [split for split in TEST_SPLITS if split in known][:1]
            wanted = f"one called {', '.join(TEST_SPLITS)}"
        if not chosen or not set(chosen) <= known:
            raise UserError(
                f"expected a split of {self.path}, {wanted}, got {sorted(known)}: name some by "
                "`splits`"
            )
        return [row for row in rows if row.split in chosen]


def kind_of_table(path: Path, columns: Columns | None) -> str:
    """Returns the class path of pairs, multiple choice or retrieval, as fits the columns."""
    known = Table(path, None, columns).columns
    if known["negative_image"]:
        return "vlmtune.benchmarks.table_pairs.TablePairs"
    if known["negative"]:
        return "vlmtune.benchmarks.table_multiple_choice.TableMultipleChoice"
    return "vlmtune.benchmarks.table_retrieval.TableRetrieval"


def read_shards(folder: Path, shape: Any, layout: str, fix: str) -> Iterator[Any]:
    """Yields the checked rows of a release's Parquet files; each name says how many there are."""
    files = sorted(folder.glob("*.parquet"))
    numbered = SHARD.fullmatch(files[0].stem) if files else None
    if numbered:
        name, count = numbered.groups()
        # Those that are missing, too: opening one is an error.
        files = [folder / f"{name}-{k:05d}-of-{count}.parquet" for k in range(int(count))]
    for file in files:
        for cells in read_cells(file):
            yield check_shape(cells, shape, file, layout, fix)


def image_ref(image: Path | bytes | None, row: TableRow) -> ImageRef:
    """Returns an image of a row; one inside the table is written to `~/.cache/vlmtune` once."""
    if image is None:
        _refuse_row(row, "second image")
    if isinstance(image, Path):
        return ImageRef(image)
    return written_image(image, Path.home() / ".cache/vlmtune/images")


def written_image(content: bytes, folder: Path) -> ImageRef:
    """Writes an encoded image to a folder once, and returns it."""
    # By its content: many rows may hold one image, and a table is measured more than once.
    path = folder / hashlib.sha256(content).hexdigest()
    if not path.is_file():
        with write_atomically(path) as temporary:
            temporary.write_bytes(content)
    return ImageRef(path)


def texts_of(row: TableRow, *, negatives: bool) -> tuple[str, ...]:
    """Returns the captions or hard negatives of a row, at least one."""
    texts = row.negatives if negatives else row.captions
    if not texts:
        kind = "hard-negative caption" if negatives else "caption"
        _refuse_row(row, kind)
    return texts


def _refuse_row(row: TableRow, lacks: str) -> NoReturn:
    raise UserError(
        f"expected a {lacks} in {row.where}, got none: complete or remove the row, or name the "
        "column by `columns`"
    )


def fixture_table(folder: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a csv and a small image for each name in it; returns the path of the csv."""
    cells = dict.fromkeys(chain.from_iterable(rows))
    names = [cell for cell in cells if cell.endswith(".png")]
    for number, name in enumerate(names):
        level = 40 * number
        write_image(folder / name, level, 90, 255 - level)
    return write_csv(folder / "test.csv", columns, rows)


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the Parquet file of a fixture."""
    from pyarrow import Table, parquet  # an optional package

    parquet.write_table(Table.from_pylist(list(rows)), path)


def _held_out(rows: Sequence[TableRow], fraction: float) -> list[TableRow]:
    """The rows whose images a builder with the same `held_out` does not train on."""
    images = DistinctImages((HELD_OUT,), fraction)
    # A row may join the images of other rows, so all rows are added before the first is asked for:
    # the split of an image is that of all that it shares rows with.
    digested = [(row, tuple(_digests(row))) for row in rows]
    for row, digests in digested:
        images.add(row, digests)
    images.finish()
    return [row for row, digests in digested if images.writes(row, digests)]


def _digests(row: TableRow) -> Iterator[bytes]:
    for image in (row.image, row.negative_image):
        if isinstance(image, Path):
            with reading(row.where, f"the image {image}", "check `images`, or remove the row"):
                image = regular(image).read_bytes()
        if image is not None:
            yield hashlib.sha256(image).digest()
