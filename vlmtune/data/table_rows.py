"""Rows of a table as captioned images: which column is what, and what its cells hold.

In: a table (`vlmtune.data.tables`) and the names of its columns, or guesses. Out: rows. Never: an
opened image.
"""

import ast
import difflib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PureWindowsPath
from typing import Any

from vlmtune.data.tables import Cells, column_names, numbered_rows
from vlmtune.errors import UserError

# What a column holds -> names that are taken for it, most telling first. Captions and negatives may
# have several columns: all of the first name that a table has, also in the plural and numbered.
GUESSES: dict[str, tuple[str, ...]] = {
    "image": (
        *("image", "image_path", "filepath", "file_path", "path", "img_path", "img"),
        *("image_file", "image_name", "file_name", "filename", "file"),
    ),
    "caption": ("caption", "text", "sentence", "raw", "description", "alt_text"),
    "negative": (
        *("hard_negative", "negative", "hard_negative_caption", "negative_caption"),
        *("caption_neg", "neg_caption", "false_caption", "foil"),
    ),
    "negative_image": (
        *("image_neg", "negative_image", "hard_negative_image", "neg_image", "image_negative"),
        *("filename_neg", "negative_image_path"),
    ),
    "id": ("id", "image_id", "uid", "key"),
    "split": ("split", "partition"),
    "votes": ("votes",),
    "group": (),
}
_LONGEST = 255  # bytes of a file's name
_NONE = ("", "null", "None")  # a null of the command line arrives as a text
_LISTS = ("caption", "negative")  # what may have several columns
_URLS = ("url", "image_url", "img_url")
_TEXT_KEYS = ("raw", "text", "caption", "sentence")  # of a caption that is an object
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
    given: Mapping[str, str | Sequence[str] | None] | None = None

    @property
    def folder(self) -> Path:
        """The folder that the names of images start from."""
        return self.images or (self.path if self.path.is_dir() else self.path.parent)

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns by what they hold; empty where the table has none."""
        names = column_names(self.path)
        if not names:
            raise UserError(f"expected rows in {self.path}, got none: add some")
        given = _checked(self.given or {}, names, self.path)
        # A group is read beside what its column is otherwise.
        used: set[str] = set()
        for role, listed in given.items():
            if role != "group":
                used.update(listed)
        free = [name for name in names if name not in used]
        columns = {role: _guess(role, free) for role in GUESSES} | given
        for role in ("image", "caption"):
            if not columns[role]:
                raise self._lacking(role, names)
        return columns

    def summary(self) -> str:
        """States which column was taken for what, and which were not used."""
        taken, used = [], set()
        for role, columns in self.columns.items():
            if columns:
                taken.append(f"{role} from {', '.join(map(repr, columns))}")
                used.update(columns)
        rest = [repr(name) for name in column_names(self.path) if name not in used]
        unused = f"; not used: {', '.join(rest)}" if rest else ""
        return f"{self.path.name}: {', '.join(taken)}{unused}"

    def rows(self, unusable: Callable[[str, str], None] | None = None) -> Iterator[TableRow]:
        """Yields the rows in order.

        A row without an image, or with too many or too few cells, is left out: `unusable` is called
        with where it is and what is wrong. By default it is an error, as other wrong cells are.
        """
        (column,) = self.columns["image"]
        for position, cells in numbered_rows(self.path):
            where, wrong = f"{position} of {self.path}", cells
            if isinstance(cells, dict):
                image, wrong = self._image(cells.get(column), column, where), "no image"
                if image is not None:
                    yield self._row(cells, image, where)
                    continue
            if unusable is None:
                raise UserError(f"expected an image in {where}, got {wrong}: mend or remove it")
            unusable(where, str(wrong))

    def _row(self, cells: Cells, first: tuple[Path | bytes, str], where: str) -> TableRow:
        second = None
        for column in self.columns["negative_image"]:
            second = self._image(cells.get(column), column, where)
        ids = {role: self._name(cells, role, where) for role in ("id", "split", "group")}
        captions = self._columns_of_texts(cells, "caption", where)
        negatives = self._columns_of_texts(cells, "negative", where)
        for text, column in negatives.items():
            if text in captions:
                raise UserError(
                    f"expected a false caption in {where}, column {column!r}, got {text!r}, which "
                    f"is also a caption of its image {ids['id'] or first[1]!r}: remove one of them"
                )
        negative_image = second or (None, "")
        texts = tuple(captions), tuple(negatives)
        votes = self._cell(cells, "votes")
        # Positions are in the order of the attributes: image, texts, hard-negative image.
        return TableRow(*first, *texts, *negative_image, **ids, where=where, votes=votes)

    def _columns_of_texts(self, cells: Cells, role: str, where: str) -> dict[str, str]:
        """The column of each caption, or of each negative, in order."""
        texts: dict[str, str] = {}
        for column in self.columns[role]:
            texts |= dict.fromkeys(_texts(cells.get(column), column, where), column)
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
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return None
        # A longer name is not a file: it is a caption in the wrong column.
        if not isinstance(cell, str) or _is_too_long(cell):
            raise _cell_error(where, column, "an image file or encoded image", cell)
        if re.match(r"[a-z][a-z0-9+]+://", cell):
            raise _cell_error(where, column, "an image file", cell, _DOWNLOAD)
        cell = cell.strip()
        # Shards copy every file that a table names; a downloaded table must not name others.
        folder, path = os.path.abspath(self.folder), self._path(cell)
        if path is None or os.path.commonpath((folder, path)) != folder:
            fix = "set `images` to the folder of images"
            if path is None:
                fix += f", a copy of {PureWindowsPath(cell).parent} that keeps its name"
            raise _cell_error(where, column, f"an image file inside {self.folder}", cell, fix)
        return self.folder / os.path.relpath(path, folder), cell

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
        existing = [copy for copy in copies if copy.is_file()]
        return os.path.abspath((existing or copies)[0]) if copies else None

    def _name(self, cells: Cells, role: str, where: str) -> str:
        cell = self._cell(cells, role)
        if cell is None:
            return ""
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            raise _cell_error(where, self.columns[role][0], "a name or a number", cell)
        return str(cell).strip()

    def _lacking(self, role: str, names: Sequence[str]) -> UserError:
        fix = f"name it by `columns.{role}`"
        if role == "image" and any(name.lower() in _URLS for name in names):
            fix = _DOWNLOAD
        elif self.path.is_dir():
            fix = "write captions beside the images, such as a.txt for a.png"
        return UserError(
            f"expected a column of {role}s in {self.path}, got the columns {', '.join(names)}: "
            f"{fix}"
        )


def captions(cells: Cells) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the captions and the hard negatives of a row, their columns guessed.

    Example:
        >>> captions({"caption": "a dog", "negatives": ["a cat"], "width": 3})
        (('a dog',), ('a cat',))
    """
    by_role = []
    for role in _LISTS:
        texts: dict[str, None] = {}
        for column in _guess(role, list(cells)):
            texts |= dict.fromkeys(_texts(cells[column], column, "the record"))
        by_role.append(tuple(texts))
    return by_role[0], by_role[1]


def _checked(
    given: Mapping[str, str | Sequence[str] | None], names: Sequence[str], path: Path
) -> dict[str, tuple[str, ...]]:
    """The given columns, each of them in the table."""
    checked = {}
    for role, value in given.items():
        if role not in GUESSES:
            raise UserError(f"expected `columns` of {', '.join(GUESSES)}, got {role!r}: name one")
        # A table may have a column called "None".
        value = None if value in _NONE and value not in names else value
        columns = (value,) if isinstance(value, str) else tuple(value or ())
        unknown = [column for column in columns if column not in names]
        if unknown:
            close = difflib.get_close_matches(unknown[0], names, 1)
            advice = f"did you mean {close[0]!r}?" if close else f"name one of {', '.join(names)}"
            raise UserError(f"expected a column of {path} for {role}, got {unknown[0]!r}: {advice}")
        if len(columns) > 1 and role not in _LISTS:
            raise UserError(
                f"expected one column for {role} of {path}, got {', '.join(columns)}: name one"
            )
        checked[role] = columns
    return checked


def _guess(role: str, names: Sequence[str]) -> tuple[str, ...]:
    plain = {name: re.sub(r"[\s\-]+", "_", name.strip().lower()) for name in names}
    for guess in GUESSES[role]:
        # A table has an unnumbered column in preference to numbered ones.
        forms = (f"{guess}s?", rf"{guess}s?_?\d+") if role in _LISTS else (guess,)
        for form in forms:
            matches = [name for name in names if re.fullmatch(form, plain[name])]
            if matches:
                return tuple(matches) if role in _LISTS else (matches[0],)
    return ()


def _texts(cell: Any, column: str, where: str) -> list[str]:
    """The captions of a cell: a text, a list of texts, or the text of such a list."""
    if cell is None or (isinstance(cell, float) and cell != cell):
        return []
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        cell = _list(cell)
    if isinstance(cell, Mapping):
        known = [key for key in _TEXT_KEYS if key in cell]
        cell = cell[known[0]] if known else cell
    if isinstance(cell, str):
        text = " ".join(cell.split())
        return [text] if text else []
    if not isinstance(cell, list | tuple):
        raise _cell_error(where, column, "a caption or a list of captions", cell)
    texts = []
    for item in cell:
        texts += _texts(item, column, where)
    return texts


def _list(cell: str) -> Any:
    """The list that a cell writes in JSON or, as pandas does, in Python; else the cell."""
    for read in (json.loads, ast.literal_eval):
        try:
            content = read(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(content, list):
            return content
    return cell


def _is_too_long(name: str) -> bool:
    return any(len(part.encode(errors="replace")) > _LONGEST for part in Path(name).parts)


def _as_path(name: str, folder: Path) -> str:
    """The name of a file, with the home folder for ~ and slashes for the backslashes of Windows."""
    if "\\" in name and not (folder / name).exists():
        name = name.replace("\\", "/")
    return os.path.expanduser(name)


def _cell_error(
    where: str, column: str, expected: str, cell: Any, fix: str = "change or remove the cell"
) -> UserError:
    got = "nothing" if cell in (None, "") else repr(cell)[:60]
    return UserError(f"expected {expected} in {where}, column {column!r}, got {got}: {fix}")
