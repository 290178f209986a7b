"""Folders of images out of Parquet files.

In: Parquet files with images as bytes. Out: a folder for each class, with its images, or one folder
of images with their rows. Never: an image decoded, or a folder that a killed run left half full
taken as whole.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmtune.data.tables import read_cells
from vlmtune.sources.ledger import Ledger
from vlmtune.sources.placing import merged_folder
from vlmtune.storage.files import reading

SUFFIXES = {b"\x89PN": ".png", b"\xff\xd8\xff": ".jpg"}
"""The first three bytes of a file of each kind of image."""
FIX = "its source changed, get it again"


def write_class_folders(
    root: Path, parquet: str, out: str, image: str, label: str, names: Sequence[str]
) -> None:
    """Writes `out`/CLASS/00001.png, ... in the order of the rows; all folders are below `root`.

    `image` is the column with the bytes of the images, `label` the one with the position of the
    class in `names`.
    """
    source = root / parquet
    # By number, and not as a list: -1 stands for an unknown class in some data sets.
    name_of = dict(enumerate(names))
    counts: Counter[str] = Counter()
    with merged_folder(root / out, Ledger(root)) as folder:
        for row in read_cells(source):
            content, suffix = _image(row.get(image), source)
            with reading(source, f"numbers of {len(names)} classes", FIX):
                name = name_of[row[label]]
            counts[name] += 1
            path = folder / name / f"{counts[name]:05d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_rows(root: Path, parquet: str, out: str, image: str, columns: Sequence[str]) -> None:
    """Writes `out`/00001.jpg, ... and `out`/rows.jsonl, with the names of the images in the rows.

    `image` is the column with the bytes of the images; `columns` are kept as they are. `parquet`
    is a file or a folder of them, below `root` as `out` is.
    """
    source = root / parquet
    lines = []
    with merged_folder(root / out, Ledger(root)) as folder:
        folder.mkdir(parents=True)
        for number, row in enumerate(read_cells(source), start=1):
            content, suffix = _image(row.get(image), source)
            name = f"{number:05d}{suffix}"
            (folder / name).write_bytes(content)
            line: dict[str, Any] = {image: name}
            for column in columns:
                line[column] = row.get(column)
            lines.append(json.dumps(line) + "\n")
        (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")


def _image(cell: Any, source: Path) -> tuple[bytes, str]:
    """The encoded image of a cell, and the suffix of its file."""
    with reading(source, "the bytes of PNG or JPEG images", FIX):
        # The library `datasets` stores an image as its bytes and its path.
        content = cell["bytes"] if isinstance(cell, dict) else cell
        return content, SUFFIXES[content[:3]]
