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
from vlmtune.errors import UserError
from vlmtune.storage.files import write_atomically

SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg"}
"""First bytes of a file of each kind of image."""


def write_class_folders(
    root: Path, parquet: str, out: str, image: str, label: str, names: Sequence[str]
) -> None:
    """Writes `out`/CLASS/00001.png, ... in the order of the rows.

    Args:
        root: The data root.
        parquet: Folder of the Parquet files, below it.
        out: Folder to write, below it.
        image: Column with the bytes of the images.
        label: Column with the number of the class.
        names: Names of the classes, by number.
    """
    source = root / parquet
    counts: Counter[str] = Counter()
    with write_atomically(root / out) as folder:
        for row in read_cells(source):
            name = _class_name(row.get(label), names, source)
            content = _content(row.get(image), source)
            counts[name] += 1
            path = folder / name / f"{counts[name]:05d}{_suffix(content, source)}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_rows(root: Path, parquet: str, out: str, image: str, columns: Sequence[str]) -> None:
    """Writes `out`/00001.jpg, ... and `out`/rows.jsonl, with the names of the images in the rows.

    Args:
        root: The data root.
        parquet: The Parquet file, or the folder of them, below it.
        out: Folder to write, below it.
        image: Column with the bytes of the images.
        columns: Columns that are kept as they are.
    """
    source = root / parquet
    lines = []
    with write_atomically(root / out) as folder:
        folder.mkdir(parents=True)
        for number, row in enumerate(read_cells(source), start=1):
            content = _content(row.get(image), source)
            name = f"{number:05d}{_suffix(content, source)}"
            (folder / name).write_bytes(content)
            kept = {column: row.get(column) for column in columns}
            lines.append(json.dumps({image: name, **kept}) + "\n")
        (folder / "rows.jsonl").write_text("".join(lines), encoding="utf-8")


def _class_name(number: Any, names: Sequence[str], source: Path) -> str:
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise UserError(
            f"expected numbers of {len(names)} classes in {source}, got {number!r}: its source "
            "changed, get it again"
        )
    return names[number]


def _content(cell: Any, source: Path) -> bytes:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(content, bytes):
        raise UserError(
            f"expected the bytes of images in {source}, got {type(content).__name__}: its source "
            "changed, get it again"
        )
    return content


def _suffix(content: bytes, source: Path) -> str:
    for start, suffix in SUFFIXES.items():
        if content.startswith(start):
            return suffix
    raise UserError(
        f"expected PNG or JPEG images in {source}, got bytes {content[:4]!r}: its source changed, "
        "get it again"
    )
