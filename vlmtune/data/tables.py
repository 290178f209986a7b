"""Tables of captioned images as rows of cells: csv, tsv, JSON, JSON lines, Parquet, Arrow, folders.

In: a file or a folder. Out: the cells of each row by column, in order, and where the row is. Never:
what a column means, or a decoded image. Parquet and Arrow need the package pyarrow.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from vlmtune.errors import UserError, imported
from vlmtune.storage.files import read_json, reading, regular
from vlmtune.storage.image_files import SUFFIXES, image_files

Cells = dict[str, Any]
NumberedRow = tuple[str, Cells | str]  # "line 2", with cells, or with what is wrong

SPLIT_FOLDERS = ("train", "val", "valid", "validation", "dev", "test")
_DICT, _STATE = "dataset_dict.json", "state.json"  # of a Hugging Face dataset saved to disk
_PART = re.compile(r"(\w+?)-\d+(-of-\d+)?")  # "train-00000-of-00002"
_Name = Annotated[str, Field(pattern=r"^\w[\w.\-]*$")]  # of a file in the same folder
_AT_ONCE = 256  # rows of a Parquet or Arrow file in memory


class _Splits(TypedDict):
    """The content of `dataset_dict.json`: names of folders."""

    splits: list[_Name]


class _File(TypedDict):
    """A file of a split."""

    filename: _Name


class _State(TypedDict):
    """The content of `state.json` that is read."""

    _data_files: list[_File]


def read_cells(path: Path) -> Iterator[Cells]:
    r"""Yields the cells of each row of a table, by column.

    - `.csv`, `.tsv`: the first line names the columns; commas, semicolons, tabs or bars between.
    - `.jsonl`: an object a line. `.json`: a list of objects, or an object of objects.
    - `.parquet`, `.arrow`: through pyarrow.
    - A folder that `datasets` saved (`save_to_disk`), or one of Parquet files. The name of the
      split is the cell "split": "train" of `train-00000-of-00002.parquet`, `train.parquet` and
      `train/0000.parquet`.
    - A folder of images: a row an image, with the columns "image" (its path in the folder),
      "caption" (the lines of the `.txt` beside it) and those of the `.json` beside it. The first
      folder is the cell "split" if it is called train, val or test.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "rows.tsv")
        ...     _ = path.write_text("image\tcaption\na.jpg\ta dog\n")
        ...     list(read_cells(path))
        [{'image': 'a.jpg', 'caption': 'a dog'}]
    """
    for position, cells in numbered_rows(path):
        if isinstance(cells, str):
            raise UserError(f"expected a table in {path}, got {cells} in {position}: mend the row")
        yield cells


def numbered_rows(path: Path) -> Iterator[NumberedRow]:
    r"""Yields where each row is, with its cells as of `read_cells`, or why it cannot be read.

    A row of a text is at the line where it begins ("line 2"); others are numbered ("row 1").

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "rows.csv")
        ...     _ = path.write_text("image,caption\na.jpg,a dog\nb.jpg,a cat, a cow\n")
        ...     list(numbered_rows(path))
        [('line 2', {'image': 'a.jpg', 'caption': 'a dog'}), ('line 3', '3 cells for 2 columns')]
    """
    path = Path(path)
    if not path.is_dir() and path.suffix.lower() not in _READERS:
        known = ", ".join(_READERS)
        fix = "correct the path or convert it"
        raise UserError(f"expected a table ({known}) or a folder, got {path}: {fix}")
    with reading(path, "a table"):
        if path.is_dir():
            yield from _numbered(_folder(path))
        else:
            yield from _READERS[path.suffix.lower()](regular(path))


def column_names(path: Path) -> list[str]:
    """Returns the columns of a table; rows of JSON and of folders may lack some of them."""
    # Objects of JSON may lack keys, so only these formats show all columns in one row.
    complete = Path(path).suffix.lower() in (".csv", ".tsv", ".parquet", ".arrow")
    names: dict[str, None] = {}
    for _, cells in numbered_rows(path):
        if not isinstance(cells, str):
            names |= dict.fromkeys(cells)
            if complete:  # its first row has all columns
                break
    return list(names)


def _numbered(rows: Iterable[Cells | str]) -> Iterator[NumberedRow]:
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _object(row: Any) -> Cells | str:
    if isinstance(row, dict):
        return row
    return f"{str(row)[:40]!r} instead of an object"


def _csv(path: Path) -> Iterator[NumberedRow]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = _delimiter(file.readline(), path)
        rows = csv.reader(file, delimiter=delimiter, strict=True)  # a lost quote is an error
        file.seek(0)  # the header is a row of the reader, too
        names = next(rows, [])
        # Spreadsheets write empty columns and empty rows as commas alone.
        named = list(filter(None, names))
        # Of two columns of one name a dictionary keeps the second, without a word.
        if len(set(named)) < len(named):
            raise UserError(f"expected different columns in {path}, got {names}: rename one")
        end = rows.line_num
        try:
            for row in rows:
                # A quoted cell may go over several lines.
                first = end + 1
                end = rows.line_num
                if not any(row):
                    continue
                if len(row) == len(names):
                    yield f"line {first}", dict(zip(names, row, strict=True))
                else:
                    yield f"line {first}", f"{len(row)} cells for {len(names)} columns"
        except csv.Error as error:  # as of a quote without an end
            raise UserError(
                f"expected a table in {path}, got {error} in the row that begins in line "
                f"{end + 1}: mend the quotes of that row"
            ) from error


def _delimiter(header: str, path: Path) -> str:
    """What separates the cells: tabs in a .tsv, in a .csv what spreadsheets export."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    try:
        return csv.Sniffer().sniff(header, ",;\t|").delimiter
    except csv.Error:  # one column
        return ","


def _json_lines(path: Path) -> Iterator[NumberedRow]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = _object(json.loads(line))
            except ValueError as error:
                row = f"{type(error).__name__} ({error})"
            yield f"line {number}", row


def _json(path: Path) -> Iterator[NumberedRow]:
    content = read_json(path, "a table")
    if isinstance(content, dict) and isinstance(content.get("images"), list):
        raise UserError(
            f"expected a list of rows in {path}, got the layout of COCO or Karpathy: use `vlmtune "
            "build coco` or `vlmtune build karpathy`"
        )
    rows = content.values() if isinstance(content, dict) else content
    yield from _numbered(map(_object, rows))


def _columnar(path: Path) -> Iterator[Cells]:
    fix = "pip install pyarrow, or convert the table to csv or JSON lines"
    pyarrow = imported("pyarrow", f"for {path}", fix)
    parquet = imported("pyarrow.parquet", f"for {path}", fix)
    with pyarrow.memory_map(str(path)) as source:
        if path.suffix.lower() == ".parquet":
            batches = parquet.ParquetFile(source).iter_batches(_AT_ONCE)
        else:
            try:
                batches = pyarrow.ipc.open_stream(source)  # what `datasets` writes
            except pyarrow.ArrowInvalid:
                file = pyarrow.ipc.open_file(source)  # what other tools write
                batches = map(file.get_batch, range(file.num_record_batches))
        for batch in batches:
            # Damaged offsets lie outside the file in memory: following them ends the process.
            batch.validate(full=True)
            for start in range(0, batch.num_rows, _AT_ONCE):
                yield from batch.slice(start, _AT_ONCE).to_pylist()


_READERS: dict[str, Callable[[Path], Iterator[NumberedRow]]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": lambda path: _numbered(_columnar(path)),
    ".arrow": lambda path: _numbered(_columnar(path)),
}


def is_dataset(path: Path) -> bool:
    """Whether a folder is a dataset that the library `datasets` saved."""
    return (path / _DICT).is_file() or (path / _STATE).is_file()


def source_files(path: Path) -> list[Path]:
    """Returns the files whose content makes the table: the file, or the files of a folder."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    if (path / _DICT).is_file():
        listed: _Splits = read_json(path / _DICT, "a dataset", shape=_Splits)
        files = []
        for split in listed["splits"]:
            files += source_files(path / split)
        return files
    if (path / _STATE).is_file():
        state: _State = read_json(path / _STATE, "a dataset", shape=_State)
        return [path / part["filename"] for part in state["_data_files"]]
    if parts := sorted(path.rglob("*.parquet")):
        return parts
    beside = []
    for image in image_files(path):
        beside += [image.with_suffix(".txt"), image.with_suffix(".json")]
    return [file for file in beside if file.is_file()]


def _folder(path: Path) -> Iterator[Cells | str]:
    if not is_dataset(path) and next(path.rglob("*.parquet"), None) is None:
        yield from _image_folder(path)
        return
    saved = (path / _DICT).is_file()
    for file in source_files(path):
        split = file.parent.name if saved else _split_of_file(file.relative_to(path))
        beside = {} if split is None else {"split": split}
        for row in read_cells(file):
            yield beside | row


def _split_of_file(name: Path) -> str | None:
    """The split that a file of a folder is of, by its name or else by its folder."""
    numbered = _PART.fullmatch(name.stem)
    part = numbered[1] if numbered else name.stem
    for one in (part, *name.parts[-2::-1]):  # "train.parquet", "train/0000.parquet"
        if one.lower() in SPLIT_FOLDERS:
            return one
    # A split may have another name; "data-00000-of-00002" is of a whole dataset.
    return part if numbered and part != "data" else None


def _image_folder(path: Path) -> Iterator[Cells | str]:
    files = image_files(path)
    if not files:
        raise UserError(
            f"expected images ({', '.join(SUFFIXES)}) in {path}, got none: name their folder"
        )
    for file in files:
        name = file.relative_to(path)
        row: Cells = {}
        if name.parts[0].lower() in SPLIT_FOLDERS:
            row["split"] = name.parts[0]
        text = file.with_suffix(".txt")
        sidecar = file.with_suffix(".json")
        try:
            if text.is_file():
                with reading(text, "captions"):
                    row["caption"] = text.read_text(encoding="utf-8-sig").splitlines()
            if sidecar.is_file():
                row |= read_json(sidecar, "a JSON object", shape=dict[str, Any])
        except UserError as error:
            yield str(error)
            continue
        yield {**row, "image": name.as_posix()}
