"""What both CREPE benchmarks read: csv rows of a Visual Genome box, its caption and negatives.

In: a csv of either benchmark. Out: its rows with the crop and the negatives of each.
"""

import ast
from pathlib import Path

from vlmtune.benchmarks.files import first_file, get_file, pixel_box, read_csv
from vlmtune.storage.files import reading
from vlmtune.types import ImageRef

IMAGE_FOLDERS = ("VG_100K", "VG_100K_2")
COLUMNS = ("image_id", "caption", "x", "y", "width", "height")
SOURCE = "vlmtune download crepe"
Region = tuple[dict[str, str], ImageRef, tuple[str, ...]]


def read_regions(path: Path, images: str, negatives: str, *columns: str) -> list[Region]:
    """Reads the rows of a csv, each with its crop and the captions in the column `negatives`."""
    paths: dict[int, Path] = {}
    regions = []
    rows = read_csv(path, (*COLUMNS, negatives, *columns), SOURCE)
    for position, row in enumerate(rows):
        layout = f"numbers and a list of captions in row {position}"
        with reading(path, layout, get_file(SOURCE)):
            number = int(row["image_id"])
            box = pixel_box(row["x"], row["y"], row["width"], row["height"])
            texts = read_texts(row[negatives])
        if number not in paths:
            # Many rows share an image, and looking for a file takes time.
            candidates = [Path(images, folder, f"{number}.jpg") for folder in IMAGE_FOLDERS]
            paths[number] = first_file(candidates)
        regions.append((row, ImageRef(paths[number], box), texts))
    return regions


def read_texts(value: str) -> tuple[str, ...]:
    """The captions of a Python list or set literal; a set in alphabetical order.

    Example:
        >>> read_texts("['b', 'a']"), read_texts("{'b', 'a'}")
        (('b', 'a'), ('a', 'b'))
    """
    texts = ast.literal_eval(value.strip())
    is_collection = isinstance(texts, list | set)
    if not is_collection or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{value[:40]!r} instead of a list of captions")
    # The order of a set differs from run to run.
    if isinstance(texts, set):
        texts = sorted(texts)
    return tuple(texts)
