"""What both CREPE benchmarks read: csv rows of a Visual Genome box, its caption and negatives."""

import ast
from pathlib import Path

from vlmtune.benchmarks.files import pixel_box, read_csv
from vlmtune.errors import UserError
from vlmtune.types import ImageRef

IMAGE_FOLDERS = ("VG_100K", "VG_100K_2")
COLUMNS = ("image_id", "caption", "x", "y", "width", "height")
SOURCE = "github.com/RAIVNLab/CREPE (data/); visualgenome.org, VG_100K and VG_100K_2"
Region = tuple[dict[str, str], ImageRef, tuple[str, ...]]


def read_regions(path: Path, images: str, negatives: str, *columns: str) -> list[Region]:
    """Reads the rows of a csv, each with its crop and the captions in the column `negatives`."""
    paths: dict[int, Path] = {}
    regions = []
    for i, row in enumerate(read_csv(path, (*COLUMNS, negatives, *columns), SOURCE)):
        try:
            number = int(row["image_id"])
            if number not in paths:
                known = [Path(images, folder, f"{number}.jpg") for folder in IMAGE_FOLDERS]
                # Where it is in neither folder, the first is named as missing.
                paths[number] = next((path for path in known if path.is_file()), known[0])
            box = pixel_box(row["x"], row["y"], row["width"], row["height"])
            regions.append((row, ImageRef(paths[number], box), read_texts(row[negatives])))
        except ValueError as error:
            raise UserError(
                f"expected numbers and a list of captions in {path}, got row {i} with {error}: "
                f"get the file from {SOURCE}"
            ) from error
    return regions


def read_texts(value: str) -> tuple[str, ...]:
    """The captions of a Python list or set literal; those of a set in alphabetical order.

    Raises:
        ValueError: It is neither, or holds anything but texts.

    Example:
        >>> read_texts("['b', 'a']"), read_texts("{'b', 'a'}")
        (('b', 'a'), ('a', 'b'))
    """
    try:
        texts = ast.literal_eval(value.strip())
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{value[:40]!r} instead of a list of captions") from error
    if not isinstance(texts, list | set) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{value[:40]!r} instead of a list of captions")
    return tuple(texts) if isinstance(texts, list) else tuple(sorted(texts))
