"""Karpathy's caption JSON, the form in which Flickr30K and COCO are split for retrieval.

`{"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}]}]}`; an image lies in the
subfolder `filepath` where there is one, as COCO's do.
"""

from pathlib import Path
from typing import Any

from vlmtune.benchmarks.base import read_json
from vlmtune.errors import UserError

WANTED = "Karpathy's caption JSON"


def read_split(path: Path, split: str) -> list[tuple[str, tuple[str, ...]]]:
    """The images of a split in the order of the file: file name and captions, blanks collapsed.

    Raises:
        UserError: The file is not what it should be, has no such split, or an image of the split
            has no file name or no caption.
    """
    content = read_json(path, WANTED)
    listed = content.get("images") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise _wrong(path, "no list `images` of objects")
    known = sorted({str(row.get("split")) for row in listed})
    if split not in known:
        raise UserError(
            f"expected a split out of {known} of {path}, got {split!r}: correct `split`"
        )
    rows = [_row(path, row) for row in listed if row.get("split") == split]
    if len({file for file, _ in rows}) != len(rows):
        raise _wrong(path, "the same image twice")
    return rows


def _row(path: Path, row: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    folder, file = row.get("filepath") or "", row.get("filename")
    try:
        raws = tuple(" ".join(sentence["raw"].split()) for sentence in row["sentences"])
    except (AttributeError, KeyError, TypeError) as error:
        raise _wrong(path, f"{file!r} with sentences of another layout ({error!r})") from error
    if not isinstance(folder, str) or not isinstance(file, str) or not file:
        raise _wrong(path, f"an image without a file name ({str(row)[:60]})")
    if not raws or not all(raws):
        raise _wrong(path, f"{file!r} without a caption, or with a blank one")
    return f"{folder}/{file}" if folder else file, raws


def _wrong(path: Path, came: str) -> UserError:
    return UserError(f"expected {WANTED} in {path}, got {came}: download it again")
