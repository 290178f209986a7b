"""What the files of CREPE have in common: csv rows of a Visual Genome box and its captions."""

import ast
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from vlmtune.benchmarks.boxes import whole_box
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

IMAGE_FOLDERS = ("VG_100K", "VG_100K_2")
COLUMNS = ("image_id", "caption", "x", "y", "width", "height")
SOURCE = "github.com/RAIVNLab/CREPE (data/); visualgenome.org, VG_100K and VG_100K_2"


def items(
    path: Path, crops: "Crops", negatives: str, columns: Sequence[str] = ()
) -> Iterator[tuple[dict[str, str], ImageRef, tuple[str, ...]]]:
    """The rows of a csv file, each with its crop and its negatives.

    Args:
        path: The file.
        crops: Finds the images.
        negatives: The column of the negatives.
        columns: What else must be there, besides image, caption and box.

    Raises:
        UserError: The file cannot be read, or lacks a column or a value, or a value is none.
    """
    for line, row in _rows(path, (negatives, *columns)):
        try:
            yield row, crops.image(row), texts(row[negatives])
        except ValueError as error:
            raise UserError(
                f"expected numbers and a list of captions in {path}, got line {line} with {error}: "
                "download the file again"
            ) from error


def check_chosen(argument: str, given: Sequence[object], known: Sequence[object]) -> None:
    """Raises `UserError` unless some of the known values are given, each at most once."""
    if not given or len(set(given)) != len(given) or any(value not in known for value in given):
        raise UserError(
            f"expected {argument} of {', '.join(map(str, known))}, each once, got {list(given)}: "
            f"correct `{argument}`"
        )


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a csv file with their line numbers."""
    needed = (*COLUMNS, *columns)
    wanted = f"a csv with the columns {', '.join(needed)} in {path}"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if lacking := [name for name in needed if name not in (reader.fieldnames or ())]:
                raise UserError(f"expected {wanted}, got none called {lacking[0]!r}: get {SOURCE}")
            for row in reader:
                if any(row[name] is None for name in needed):
                    raise UserError(
                        f"expected {wanted}, got line {reader.line_num} with fewer values: "
                        "download the file again"
                    )
                yield reader.line_num, row
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(
            f"expected {wanted}, got {type(error).__name__} ({error}): get {SOURCE}"
        ) from error


def texts(value: str) -> tuple[str, ...]:
    """The captions of a Python list or set literal; those of a set in alphabetical order.

    Raises:
        ValueError: It is neither, or holds anything but texts.

    Example:
        >>> texts("['b', 'a']"), texts("{'b', 'a'}")
        (('b', 'a'), ('a', 'b'))
    """
    try:
        found = ast.literal_eval(value.strip())
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{value[:40]!r} where a list of captions should be") from error
    if not isinstance(found, list | set) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"{value[:40]!r} where a list of captions should be")
    return tuple(found) if isinstance(found, list) else tuple(sorted(found))


class Crops:
    """Finds Visual Genome images by number, in either of the two folders of the release."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths: dict[str, Path] = {}

    def image(self, row: dict[str, str]) -> ImageRef:
        """The box of the row's image; a missing file is named in the first folder.

        Raises:
            ValueError: The number or the box is none.
        """
        number = str(int(row["image_id"]))
        if number not in self._paths:
            paths = [self.folder / name / f"{number}.jpg" for name in IMAGE_FOLDERS]
            self._paths[number] = next((path for path in paths if path.is_file()), paths[0])
        box = whole_box(row["x"], row["y"], row["width"], row["height"])
        return ImageRef(self._paths[number], box)
