"""Files of items, `items.jsonl` and its like: the items of a run's benchmarks, a row each.

In: rows. Out: JSON lines, CSV or Parquet, by the file's name, and rows again. Parquet needs the
package pyarrow.
"""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field, PositiveInt, StrictInt, TypeAdapter
from typing_extensions import TypedDict

from vlmtune.data.tables import Cells, numbered_rows
from vlmtune.errors import UserError, imported
from vlmtune.results.item_row import ItemRow
from vlmtune.results.result import Result
from vlmtune.storage.files import check_shape, reading, write_atomically
from vlmtune.types import ImageRef

STEM = "items"  # of the file beside report.json
Items = dict[str, tuple[ItemRow, ...]]  # by benchmark, in the order of the outcomes

EXPECTED, FIX = "items as vlmtune evaluate --items writes them", "change this row"
LISTS = ("files", "captions", "true", "scores", "boxes")
NO_CELL = ("", "null", "None", "nan", "NaN")
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
ROUNDED = 1e-6  # outcomes that differ by less are equal
LONGEST_CELL = 2**30  # characters; the standard library refuses more than 2^17

_Score = Annotated[float, Field(strict=True)] | None
_Text = Annotated[str, Field(min_length=1)]


class _Cells(TypedDict):
    """A row of the file, without its empty cells."""

    benchmark: _Text
    id: _Text | StrictInt
    right: NotRequired[bool]
    outcome: NotRequired[Annotated[float, Field(strict=True, ge=-1, le=1)]]
    files: NotRequired[list[str]]
    captions: NotRequired[list[str]]
    true: NotRequired[list[list[bool]] | list[bool]]
    scores: NotRequired[list[list[_Score]] | list[_Score]]
    rank: NotRequired[PositiveInt]
    boxes: NotRequired[list[tuple[int, int, int, int] | None]]
    upright: NotRequired[bool]


_SHAPE = TypeAdapter(_Cells)
COLUMNS = tuple(_Cells.__annotations__)


def check_format(path: Path) -> None:
    """Raises `UserError` if items cannot be written to a file of this name.

    Example:
        >>> check_format(Path("reports/items.csv"))
    """
    if path.suffix.lower() not in _FORMATS:
        raise UserError(
            f"expected a file of items that ends in {', '.join(_FORMATS)}, got {path}: rename it"
        )
    if path.suffix.lower() == ".parquet":
        _pyarrow(path)


def write_items(path: Path, rows: Iterable[ItemRow]) -> None:
    """Writes the rows atomically, with the columns `COLUMNS`, in the format of the file's name.

    `true` and `scores` have a list for each file with a value for each caption; a pair that the
    benchmark does not compare has the score null. `rank` is that of a query's best true image or
    caption. `right` is null for an outcome that is neither 1
    nor 0. `boxes` has x, y, width and height of the crop of each file, null for a whole image.
    JSON lines leave out what is null or empty, CSV writes lists as JSON.

    Raises:
        UserError: The name ends in none of .jsonl, .csv and .parquet, or pyarrow is missing.
    """
    check_format(path)
    write = _FORMATS[path.suffix.lower()]
    with write_atomically(path) as temporary:
        write(temporary, map(_cells, rows))


def read_items(path: Path, shared: dict[Any, Any] | None = None) -> Items:
    """Reads what `write_items` wrote, or a file of another tool with the same columns.

    The columns needed are benchmark, id, and outcome or right; with files and captions also true.
    Columns of other names are left unread. Of a row with one file, `true` and `scores` may be plain
    lists, a value for each caption. What is equal in files, as captions are, is in memory once if
    they get one dictionary `shared`.

    Raises:
        UserError: The file holds something else; the error names the row.
    """
    check_format(path)
    # Captions and scores of an item may be longer than the limit of the standard library.
    csv.field_size_limit(LONGEST_CELL)
    shared = {} if shared is None else shared
    rows: list[ItemRow] = []
    for position, cells in numbered_rows(path):
        where = f"{position} of {path}"
        if isinstance(cells, str):
            raise UserError(f"expected {EXPECTED} in {where}, got {cells}: {FIX}")
        with reading(where, EXPECTED, FIX):
            if path.suffix.lower() == ".csv":
                cells = {name: _parsed(name, cell) for name, cell in cells.items()}
            rows.append(_row(cells, where, shared))
    return by_benchmark(rows)


def by_benchmark(rows: Iterable[ItemRow]) -> Items:
    """The rows of each benchmark, in their order.

    Example:
        >>> list(by_benchmark([ItemRow("b/0", "b", 1.0), ItemRow("a/0", "a", 0.0)]))
        ['b', 'a']
    """
    out: dict[str, list[ItemRow]] = {}
    for row in rows:
        out.setdefault(row.benchmark, []).append(row)
    return {name: tuple(listed) for name, listed in out.items()}


def part_names(items: Items, benchmark: str) -> list[str]:
    """The names of a benchmark's further parts, such as `flickr30k/image_to_text`.

    Example:
        >>> row = (ItemRow("a/b/0", "a/b", 1.0, rank=1),)
        >>> part_names({"a": (), "a/b": row, "a/c": (), "ab": ()}, "a")
        ['a/b']
    """
    names = []
    for name, rows in items.items():
        has_ranks = any(row.rank is not None for row in rows)
        if has_ranks and name.startswith(f"{benchmark}/"):
            names.append(name)
    return names


def items_beside(report: Path) -> Path | None:
    """The newest file of items beside a report.json, or None."""
    named = [report.with_name(f"{STEM}{suffix}") for suffix in _FORMATS]
    files = filter(Path.is_file, named)
    # An evaluation may have been repeated with another format of items.
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def items_of(report: Path, results: Sequence[Result], shared: dict[Any, Any]) -> Items:
    """The items beside a report.json that has these results; none if their outcomes differ."""
    file = items_beside(report)
    items = {} if file is None else read_items(file, shared)
    for result in results:
        rows = items.get(result.benchmark, ())
        # A later evaluation without --items leaves the items of the earlier one in its folder.
        if rows and result.outcomes and not _have_outcomes(rows, result.outcomes):
            print(
                f"vlmtune: warning: {file} is of another evaluation than {report}, so its items "
                "are left out",
                file=sys.stderr,
            )
            return {}
    return items


def _have_outcomes(rows: Sequence[ItemRow], outcomes: Sequence[float]) -> bool:
    """Whether the rows have these outcomes, as exactly as a spreadsheet saves them."""
    if len(rows) != len(outcomes):
        return False
    differences = [abs(row.outcome - one) for row, one in zip(rows, outcomes, strict=True)]
    return max(differences) < ROUNDED


def is_items_file(path: Path) -> bool:
    """Whether a file holds items, by its name.

    Example:
        >>> is_items_file(Path("theirs.csv")), is_items_file(Path("runs/mine/report.json"))
        (True, False)
    """
    return path.suffix.lower() in _FORMATS


def _cells(row: ItemRow) -> Cells:
    boxes = [image.box and list(image.box) for image in row.images]
    all_upright = all(image.upright for image in row.images)
    # Boxes and `upright` are left out where every image has the default.
    return {
        "benchmark": row.benchmark,
        "id": row.id,
        "right": row.right,
        "outcome": row.outcome,
        "files": [str(image.path) for image in row.images],
        "captions": list(row.captions),
        "true": [list(line) for line in row.true],
        "scores": [list(line) for line in row.scores],
        "rank": row.rank,
        "boxes": boxes if any(boxes) else None,
        "upright": None if all_upright else False,
    }


def _row(cells: Cells, where: str, shared: dict[Any, Any]) -> ItemRow:
    known = {}
    for name, cell in cells.items():
        # pandas writes NaN for an empty cell; only NaN differs from itself.
        is_nan = cell != cell
        if cell is not None and not is_nan:
            known[name] = cell
    row: _Cells = check_shape(known, _SHAPE, where, EXPECTED, FIX)
    outcome = row.get("outcome", row.get("right"))
    if outcome is None:
        raise ValueError("neither a cell 'outcome' nor 'right'")
    files = row.get("files", ())
    captions = row.get("captions", ())
    boxes = row.get("boxes") or [None] * len(files)
    upright = row.get("upright", True)
    images = []
    for file, box in zip(files, boxes, strict=True):
        images.append(ImageRef(Path(file), box, upright))
    unknown_scores = [[None] * len(captions)] * len(files)
    scores = row.get("scores") or unknown_scores
    true = row.get("true", ())

    def same(value: Any) -> Any:
        return shared.setdefault(value, value)

    return ItemRow(
        id=same(str(row["id"])),
        benchmark=same(row["benchmark"]),
        outcome=float(outcome),
        images=same(tuple(images)),
        captions=same(tuple(captions)),
        true=same(_grid("true", true, len(files), len(captions))),
        scores=_grid("scores", scores, len(files), len(captions)),
        rank=row.get("rank"),
    )


def _grid(
    name: str, lines: Sequence[Any], files: int, captions: int
) -> tuple[tuple[Any, ...], ...]:
    """A list for each file with a value for each caption."""
    is_flat = not any(isinstance(line, list) for line in lines)
    if is_flat and files == 1 and len(lines) == captions:
        lines = [list(lines)]  # of a single file the outer list may be left out
    # A short list would move the scores of its file to other captions.
    are_whole = [isinstance(line, list) and len(line) == captions for line in lines]
    if len(lines) != files or not all(are_whole):
        raise ValueError(f"{name} that are not {files} lists of {captions} values")
    return tuple(tuple(map(_finite, line)) for line in lines)


def _finite(value: bool | float | None) -> bool | float | None:
    """The value, or None where numpy writes NaN for none, or infinity for a pair left out."""
    if value is None or math.isfinite(value):
        return value
    return None


def _write_json(path: Path, rows: Iterable[Cells]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            known = {name: cell for name, cell in row.items() if cell not in (None, [])}
            line = json.dumps(known, ensure_ascii=False)
            file.write(f"{line}\n")


def _write_csv(path: Path, rows: Iterable[Cells]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            cells = [_csv_cell(row[name]) for name in COLUMNS]
            writer.writerow(cells)


def _csv_cell(cell: Any) -> Any:
    if cell is None or isinstance(cell, str):
        return cell
    return json.dumps(cell, ensure_ascii=False)


def _parsed(name: str, cell: str) -> Any:
    if name in ("benchmark", "id") or name not in COLUMNS:
        return cell
    if cell.strip() in NO_CELL:
        return None
    if name in LISTS:
        return json.loads(cell)
    if name in ("outcome", "rank"):
        return float(cell)
    return TRUTHS[cell.strip().lower()]


def _write_parquet(path: Path, rows: Iterable[Cells]) -> None:
    arrow = _pyarrow(path)
    text = arrow.string()
    truth = arrow.bool_()
    number = arrow.float64()
    integer = arrow.int64()
    lists = arrow.list_
    types = {
        "benchmark": text,
        "id": text,
        "right": truth,
        "outcome": number,
        "files": lists(text),
        "captions": lists(text),
        "true": lists(lists(truth)),
        "scores": lists(lists(number)),
        "rank": integer,
        "boxes": lists(lists(integer)),
        "upright": truth,
    }
    schema = arrow.schema(list(types.items()))
    table = arrow.Table.from_pylist(list(rows), schema=schema)
    arrow.parquet.write_table(table, path)


def _pyarrow(path: Path) -> Any:
    fix = "pip install pyarrow, or name a .csv or .jsonl"
    imported("pyarrow.parquet", f"for {path}", fix)  # an attribute of pyarrow from here on
    return imported("pyarrow", f"for {path}", fix)


_FORMATS: dict[str, Callable[[Path, Iterable[Cells]], None]] = {
    ".jsonl": _write_json,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
