"""Rows of a table as captioned images: which column is what, and what its cells hold.

In: a table (`vlmtune.data.tables`) and the names of its columns, or guesses. Out: rows. Never: an
opened image.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

from vlmtune.data.table_cells import is_empty, refuse_cell, texts_of_cell
from vlmtune.data.table_columns import (
    GUESSES,
    LISTS,
    Columns,
    checked_columns,
    guessed_columns,
    misspelt,
)
from vlmtune.data.tables import Cells, column_names, numbered_rows, read_cells
from vlmtune.errors import UserError
from vlmtune.language.canonical import canonical

_LONGEST = 255  # bytes of a file's name
_URLS = ("url", "image_url", "img_url")
_DOWNLOAD = "download the images first; shards that img2dataset writes are trained on as they are"


@dataclass(frozen=True)
class TableRow:
    """An image with its captions, hard-negative captions and hard-negative image.

    Attributes:
        image: The file, or the encoded image.
        name: The image as the table names it; empty for an encoded one without a name.
        captions: True captions, each once.
        negatives: Captions that are false of `image`. With a `negative_image` they are true of it.
        id: Empty without such a column, as are `split` and `group`.
        votes: What people voted, as the cell has it; benchmarks with `min_votes` read it.
        where: The line or row and the table, for errors.
    """

    image: Path | bytes
    name: str
    captions: tuple[str, ...]
    negatives: tuple[str, ...]
    negative_image: Path | bytes | None
    negative_name: str
    id: str
    split: str
    group: str
    where: str
    votes: Any = None


@dataclass(frozen=True)
class Table:
    r"""A table of captioned images; it reads the file anew at each call.

    Attributes:
        path: The file or folder, see `read_cells`.
        images: Folder that the names of images start from; by default the table's folder.
        given: Columns by what they hold, out of image, caption, negative, negative_image, id,
            split, votes and group. caption and negative may have several. None means that there is
            none; what is not given is guessed (`GUESSES`).
        captioned: Whether captions are read, and must be there.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "rows.csv")
        ...     _ = path.write_text("file,text,width\na.jpg,a dog,3\n")
        ...     table = Table(path)
        ...     print(table.summary())
        ...     [row.captions for row in table.rows()]
        rows.csv: image from 'file', caption from 'text'; not used: 'width'
        [('a dog',)]
    """

    path: Path
    images: Path | None = None
    given: Columns | None = None
    captioned: bool = True
    # The last image by its cell: to check a path takes longer than to read its row.
    _last: dict[str, tuple[Path, str]] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def folder(self) -> Path:
        """The folder that the names of images start from."""
        if self.images is not None:
            return self.images.expanduser()
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def _names(self) -> list[str]:
        return column_names(self.path)

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns by what they hold; empty where the table has none."""
        names = self._names
        given = checked_columns(self.given or {}, names, self.path)
        needed = ("image", "caption")
        if not self.captioned:
            given |= dict.fromkeys(LISTS, ())
            needed = ("image",)
        used: set[str] = set()  # a group is read beside what its column is otherwise
        for role, listed in given.items():
            if role != "group":
                used.update(listed)
        free = [name for name in names if name not in used]
        columns = {role: guessed_columns(role, free) for role in GUESSES} | given
        missing = [role for role in needed if not columns[role]]
        if missing:
            raise self._lacking(missing[0], names)
        return columns

    def summary(self) -> str:
        """States which column was taken for what, and which were not used."""
        taken = []
        used = set()
        given = self.given or {}
        for role, columns in self.columns.items():
            if columns:
                names = ", ".join(map(repr, columns))
                taken.append(f"{role} from {names}")
                used.update(columns)
        # What was given as null is left out on purpose.
        absent = [role for role in GUESSES if not self.columns[role] and role not in given]
        rest = []
        for name in self._names:
            if name not in used:
                meant = misspelt(name, absent)
                hint = f" (did you mean {meant!r}?)" if meant else ""
                rest.append(f"{name!r}{hint}")
        unused = f"; not used: {', '.join(rest)}" if rest else ""
        return f"{self.path.name}: {', '.join(taken)}{unused}"

    def rows(self, unusable: Callable[[str, str], None] | None = None) -> Iterator[TableRow]:
        """Yields the rows in order.

        A row without an image, or with too many or too few cells, is left out: `unusable` is called
        with where it is and what is wrong. By default it is an error, as other wrong cells are.
        """
        (column,) = self.columns["image"]
        for position, cells in numbered_rows(self.path):
            where = f"{position} of {self.path}"
            if isinstance(cells, dict):
                image = self._image(cells.get(column), column, where)
                if image is not None:
                    yield self._row(cells, image, where)
                    continue
            # A row that cannot be read comes with the reason in place of its cells.
            wrong = "no image" if isinstance(cells, dict) else cells
            if unusable is None:
                raise UserError(f"expected an image in {where}, got {wrong}: mend or remove it")
            unusable(where, wrong)

    def _row(self, cells: Cells, first: tuple[Path | bytes, str], where: str) -> TableRow:
        image, name = first
        negative_image: Path | bytes | None = None
        negative_name = ""
        for column in self.columns["negative_image"]:
            second = self._image(cells.get(column), column, where)
            if second is not None:
                negative_image, negative_name = second
        row_id = self._name(cells, "id", where)
        split = self._name(cells, "split", where)
        group = self._name(cells, "group", where)
        captions = self._columns_of_texts(cells, "caption", where)
        negatives = self._columns_of_texts(cells, "negative", where)
        # Trained as false, a true caption would undo what the others teach.
        true = set(map(canonical, captions))
        for text, column in negatives.items():
            if canonical(text) in true:
                raise UserError(
                    f"expected a false caption in {where}, column {column!r}, got {text!r}, which "
                    f"is also a caption of its image {row_id or name!r}: remove one of them"
                )
        return TableRow(
            image=image,
            name=name,
            captions=tuple(captions),
            negatives=tuple(negatives),
            negative_image=negative_image,
            negative_name=negative_name,
            id=row_id,
            split=split,
            group=group,
            where=where,
            votes=self._cell(cells, "votes"),
        )

    def _columns_of_texts(self, cells: Cells, role: str, where: str) -> dict[str, str]:
        """The column of each caption, or of each negative, in order."""
        texts: dict[str, str] = {}
        for column in self.columns[role]:
            texts |= dict.fromkeys(texts_of_cell(cells.get(column), column, where), column)
        return texts

    def _cell(self, cells: Cells, role: str) -> Any:
        """The cell of what has one column at most; None without a column."""
        columns = self.columns[role]
        return cells.get(columns[0]) if columns else None

    def _image(self, cell: Any, column: str, where: str) -> tuple[Path | bytes, str] | None:
        """The image of a cell with its name; None for an empty cell."""
        name = ""
        if isinstance(cell, Mapping):  # as `datasets` stores images
            name = str(cell.get("path") or "")
            cell = cell.get("bytes") or cell.get("path")
        # Parquet may hold the images themselves.
        if isinstance(cell, bytes | bytearray) and cell:
            return bytes(cell), name
        if is_empty(cell) or (isinstance(cell, str) and not cell.strip()):
            return None
        if isinstance(cell, str) and cell in self._last:
            return self._last[cell]
        # A longer name is not a file: it is a caption in the wrong column.
        if not isinstance(cell, str) or _is_too_long(cell):
            refuse_cell(where, column, "an image file or encoded image", cell)
        if re.match(r"[a-z][a-z0-9+]+://", cell):
            refuse_cell(where, column, "an image file", cell, _DOWNLOAD)
        self._last.clear()
        self._last[cell] = self._file(cell.strip(), column, where)
        return self._last[cell]

    def _file(self, name: str, column: str, where: str) -> tuple[Path, str]:
        # Shards copy every file that a table names; a downloaded table must not name others.
        folder = os.path.abspath(self.folder)
        path = self._path(name)
        if path is None or os.path.commonpath((folder, path)) != folder:
            fix = "set `images` to the folder of images"
            if path is None:
                fix += f", a copy of {PureWindowsPath(name).parent} that keeps its name"
            refuse_cell(where, column, f"an image file inside {self.folder}", name, fix)
        return self.folder / os.path.relpath(path, folder), name

    def _path(self, name: str) -> str | None:
        """The absolute path of an image; None if it is of Windows and no part has our name."""
        folder = Path(os.path.abspath(self.folder))
        if Path(name).is_absolute() or not PureWindowsPath(name).is_absolute():
            return os.path.abspath(folder / _as_path(name, folder))
        # C:\work\photos\a.jpg is a.jpg in a folder photos of this machine.
        parts = PureWindowsPath(name).parts
        copies = []
        for number, part in enumerate(parts, start=1):
            if part.casefold() == folder.name.casefold():
                copies.append(folder.joinpath(*parts[number:]))
        if not copies:
            return None
        # Several parts may have our name: the first copy that exists is meant.
        existing = [copy for copy in copies if copy.is_file()]
        best = existing or copies
        return os.path.abspath(best[0])

    def _name(self, cells: Cells, role: str, where: str) -> str:
        cell = self._cell(cells, role)
        if is_empty(cell):
            return ""
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            refuse_cell(where, self.columns[role][0], "a name or a number", cell)
        return str(cell).strip()  # ids may be numbers

    def _lacking(self, role: str, names: Sequence[str]) -> UserError:
        fix = f"name it by `columns.{role}`"
        if role == "image" and any(name.lower() in _URLS for name in names):
            fix = _DOWNLOAD
        elif self.path.is_dir():
            fix = "write captions beside the images, such as a.txt for a.png"
        elif near := [name for name in names if misspelt(name, [role])]:
            fix = f"rename {near[0]} to {misspelt(near[0], [role])}, or {fix}"
        if not names:
            list(read_cells(self.path))  # raises the error of a row that cannot be read
            return UserError(f"expected rows in {self.path}, got none: write one for each image")
        got = f"the columns {', '.join(names)}"
        return UserError(f"expected a column of {role}s in {self.path}, got {got}: {fix}")


def _is_too_long(name: str) -> bool:
    lengths = [len(part.encode(errors="replace")) for part in Path(name).parts]
    return max(lengths, default=0) > _LONGEST


def _as_path(name: str, folder: Path) -> str:
    """The name of a file, with the home folder for ~ and slashes for the backslashes of Windows."""
    if "\\" in name and not (folder / name).exists():
        name = name.replace("\\", "/")
    return os.path.expanduser(name)
