"""Annotation files as rows: JSON, JSON lines, csv, and boxes.

In: a path and the keys that a row needs. Out: rows that have them, or one line that says what is
wrong and where to get the file. Never: the name of a benchmark.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeGuard

from PIL import Image
from pydantic import Field

from vlmtune.errors import UserError
from vlmtune.storage.files import AGAIN, reading, regular
from vlmtune.storage.image_files import image_files

Row = dict[str, Any]
Text = Annotated[str, Field(pattern=r"\S")]  # not blank
Prompt = Annotated[str, Field(pattern=r"^[^{}]*\{\}[^{}]*$")]  # with {} for the name of a class
Box = tuple[int, int, int, int]


def get_file(source: str = "") -> str:
    """The advice of an error about a file; `source` is where to get it, or a command of vlmtune.

    Example:
        >>> get_file("vlmtune download aro")
        'run `vlmtune download aro`, or name its path'
    """
    return f"{obtain('the file', source)}, or name its path" if source else AGAIN


def obtain(what: str, source: str) -> str:
    """How to get files from a place, or by a command of vlmtune."""
    if source.startswith("vlmtune "):
        return f"run `{source}`"
    return f"get {what} from {source}"


def file_error(path: str | Path, layout: str, came: str, source: str = "") -> UserError:
    """The error for a file that does not have its layout."""
    return UserError(f"expected {layout} in {path}, got {came}: {get_file(source)}")


def read_rows(path: str | Path, keys: Sequence[str], source: str) -> list[Row]:
    """Reads rows that have a text under each of the keys.

    The file is JSON lines (`.jsonl`), or JSON with a list of objects or an object of objects.
    `source` says where to get it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "rows.json")
        ...     _ = path.write_text('{"0": {"caption": "a dog", "votes": 3}}')
        ...     read_rows(path, ["caption"], "example.org")
        [{'caption': 'a dog', 'votes': 3}]
    """
    layout = f"rows with {', '.join(keys)}"
    with reading(path, layout, get_file(source)):
        text = regular(path).read_text(encoding="utf-8-sig")
        if str(path).endswith(".jsonl"):
            # Not splitlines: it would also split at characters that JSON allows within a line.
            lines = [line for line in text.split("\n") if line.strip()]
            content = [json.loads(line) for line in lines]
        else:
            content = json.loads(text)
        named = content if isinstance(content, dict) else dict(enumerate(content))
        for position, row in named.items():
            for key in keys:
                if not is_text(row.get(key)):
                    raise ValueError(f"row {position!r} without {key}")
        # A subset without items would otherwise be left out without a word.
        if not named:
            raise ValueError("no row")
    return list(named.values())


def read_csv(path: str | Path, columns: Sequence[str], source: str) -> list[dict[str, str]]:
    """Reads a csv with at least the given columns; a value may be blank."""
    layout = f"a csv with the columns {', '.join(columns)}"
    with (
        reading(path, layout, get_file(source)),
        regular(path).open(newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.DictReader(file, strict=True)
        rows = list(reader)
        present = reader.fieldnames or ()
        for name in columns:
            if name not in present:
                raise ValueError(f"no {name}")
        for position, row in enumerate(rows):
            # A row with fewer values than columns has None in the others, one with more as a name.
            if None in row.values() or None in row:
                raise ValueError(f"row {position} with fewer or more values")
    return rows


def is_text(value: Any) -> TypeGuard[str]:
    """Whether a value is a string that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def check_chosen(argument: str, values: Sequence[object], known: Sequence[object]) -> None:
    """Raises `UserError` unless one or more of the known values are given, each once."""
    chosen = set(values)
    is_repeated = len(chosen) < len(values)
    is_unknown = not chosen <= set(known)
    if not values or is_repeated or is_unknown:
        raise UserError(
            f"expected {argument} of {', '.join(map(str, known))}, each once, got {list(values)}: "
            "name some of them"
        )


def write_json(path: Path, content: Any) -> str:
    """Writes the JSON or JSON lines of a fixture, and the folder; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = content if path.suffix == ".jsonl" else [content]
    path.write_text("\n".join(map(json.dumps, parts)), encoding="utf-8")
    return str(path)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Writes the csv of a fixture and its folder; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return str(path)


def write_image(path: Path, *colour: int) -> None:
    """Writes an image of 8 x 8 pixels of one colour for a fixture, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), colour).save(path)


def class_folders(folder: str | Path, source: str) -> dict[str, list[Path]]:
    """Lists the images of each folder in a folder, at any depth, all in alphabetical order."""
    images: dict[str, list[Path]] = {}
    layout = "at least two folders of images, one for each class,"
    with reading(folder, layout, f"{obtain('them', source)}, or check `images`"):
        for path in sorted(Path(folder).iterdir()):
            # Tools leave hidden folders, which are not classes.
            if path.name.startswith(".") or not path.is_dir():
                continue
            images[path.name] = image_files(path)
        empty = [name for name, files in images.items() if not files]
        if empty or len(images) < 2:
            raise ValueError(f"{len(images)} folders, {len(empty)} without images {empty[:1]}")
    return images


def first_file(paths: Sequence[Path]) -> Path:
    """The first path that is a file; where none is, the first one, which is then missing."""
    return next((path for path in paths if path.is_file()), paths[0])


def pixel_box(x: Any, y: Any, width: Any, height: Any) -> Box:
    """The box in whole pixels that PIL's `crop((x, y, x + width, y + height))` cuts.

    Corners are rounded, not sizes. Each value is a number or the text of one. Anything else raises
    an error, as does a box without an area or with a side that is not finite.

    Example:
        >>> pixel_box("237.0", 391, 402.0, 208)
        (237, 391, 402, 208)
        >>> pixel_box(0.4, 0, 1.2, 1)
        (0, 0, 2, 1)
    """
    left = float(x)
    top = float(y)
    right = left + float(width)
    bottom = top + float(height)
    wide = round(right) - round(left)  # neither infinity nor NaN can be rounded
    high = round(bottom) - round(top)
    if wide <= 0 or high <= 0:
        raise ValueError(f"the box {(x, y, width, height)}, which has no area")
    return round(left), round(top), wide, high
