"""Records of WebDataset tars as groups: our own, and those that others wrote.

In: an undecoded record. A record of others is an image (jpg, png, webp) and its captions (txt,
json), as img2dataset writes them; the name of a text may say what it holds (`caption.txt`). Out: a
group, without its images. Never: a tar.
"""

import hashlib
import json
import re
from typing import Any

import torch

from vlmtune.data.schema import EXTENSIONS, RecordError, check, decode
from vlmtune.data.table_cells import captions
from vlmtune.data.tar_records import TEXTS, RawRecord, is_text
from vlmtune.types import Group

_IMAGE = re.compile(rf"(?!\d+\.)(?:.*\.)?(?:{'|'.join(EXTENSIONS)})")  # "jpg", not "0.jpg"


def decode_header(raw: RawRecord) -> tuple[Group, tuple[str, ...]]:
    """Returns a record's group without images, and its image files; `RecordError` if damaged."""
    # Our images are called 0.jpg, 1.jpg, ...
    if any(_IMAGE.fullmatch(name) for name in raw.spans):
        return decode_sample(raw)
    if "json" not in raw.members or all(map(is_text, raw.spans)):
        raise RecordError("has no json, or no image")
    try:
        record = json.loads(raw.members["json"].decode())
    except (ValueError, RecursionError) as error:  # the latter of deeply nested JSON
        raise RecordError(f"has a malformed json ({error})") from error
    group, files = decode(raw.key, record)
    missing = [file for file in files if file not in raw.spans]
    if missing:
        raise RecordError(f"lacks image {missing[0]}")
    return group, files


def decode_sample(raw: RawRecord) -> tuple[Group, tuple[str, ...]]:
    """Returns the group of a record of others, without the image, and the name of its image.

    Captions come from the json, with the columns of a table (`caption`, `captions`, ...), else
    the lines of the txt. A member `caption.txt` or `caption.json` is such a column, too. Hard
    negatives are false captions. A caption is its own id; the id of the image holds a hash of where
    it lies and of its texts, so that equal keys of two folders are two images.
    """
    images = [name for name in raw.spans if _IMAGE.fullmatch(name)]
    if len(images) != 1:
        raise RecordError(f"has {len(images)} images")
    true, false = _captions(raw)
    if not true:
        raise RecordError("has no caption")
    hard = [text for text in false if text not in true]
    texts = (*true, *hard)
    is_true = [text in true for text in texts]
    # Keys such as "000000001" recur in every data set of img2dataset.
    span = raw.spans[images[0]]
    where = json.dumps([raw.shard.name, raw.key, span])
    digest = hashlib.sha256(where.encode())
    for member in _texts(raw):
        digest.update(raw.members[member])
    group = Group(
        key=re.sub(r"[^A-Za-z0-9_\-]", "_", raw.key),
        image_ids=(f"{raw.key} {digest.hexdigest()[:12]}",),
        text_ids=texts,
        texts=texts,
        truth=torch.tensor([is_true]),
        true_ids=(frozenset(true),),
    )
    check(group)
    return group, (images[0],)


def _texts(raw: RawRecord) -> list[str]:
    """The names of the texts of a record, plain ones first."""
    plain = [name for name in TEXTS if name in raw.members]
    named = [name for name in raw.members if is_text(name) and name not in TEXTS]
    return plain + sorted(named)


def _captions(raw: RawRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        true, false = captions(_cells(raw))
        if not true:
            lines = raw.members.get("txt", b"").decode("utf-8-sig").splitlines()
            true, _ = captions({"caption": lines})
        return true, false
    except (ValueError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise RecordError(f"has a malformed text ({line})") from error


def _cells(raw: RawRecord) -> dict[str, Any]:
    """The texts of a record by column, but its plain txt; columns of the plain json win."""
    cells: dict[str, Any] = {}
    for name in _texts(raw):
        column, _, kind = name.rpartition(".")
        text = raw.members[name].decode("utf-8-sig")
        value = json.loads(text or "null") if kind == "json" else text.splitlines()
        if column:
            value = value if isinstance(value, dict) else {column: value}
        elif not isinstance(value, dict):  # a plain text has no column
            continue
        for key, cell in value.items():
            if cell is not None:
                cells.setdefault(key, cell)
    return cells
