"""WebDataset tars that others wrote, trained on as they are: an index, and records as groups.

In: a folder of tars whose records are an image (jpg, png, webp) and its captions (txt, json), as
img2dataset writes them; the name of a text may say what it holds (`caption.txt`). Out: a manifest,
made once, and groups. Never: a changed tar.

The manifest counts the records of each tar, as that of a builder does, so order, resuming and
reports of damage are those of our own shards. It lies beside the tars or, where that
folder cannot be written, in `~/.cache/vlmtune/webdataset`.
"""

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

from vlmtune.data.schema import (
    EXTENSIONS,
    MANIFEST,
    Manifest,
    RecordError,
    ShardInfo,
    check,
    parse_manifest,
    read_manifest,
)
from vlmtune.data.table_rows import captions
from vlmtune.data.tar_records import TEXTS, Damage, RawRecord, is_text, read_records
from vlmtune.errors import UserError
from vlmtune.storage.files import regular, write_text
from vlmtune.storage.folder import locked
from vlmtune.storage.progress import progress
from vlmtune.types import Group

INDEX = "vlmtune.data.webdataset"  # the builder that the manifest of an index names
CHANGED = "mtime_ns"  # the argument of that builder: when each tar was written last
_IMAGE = re.compile(rf"(?!\d+\.)(?:.*\.)?(?:{'|'.join(EXTENSIONS)})")  # "jpg", not "0.jpg"
log = logging.getLogger("vlmtune")


def is_sample(raw: RawRecord) -> bool:
    """Tells whether a record is of others: our images are called 0.jpg, 1.jpg, ..."""
    return any(_IMAGE.fullmatch(name) for name in raw.spans)


def decode_sample(raw: RawRecord) -> tuple[Group, tuple[str, ...]]:
    """Returns the group of a record of others, without the image, and the name of its image.

    Captions are those of the json, with the columns of a table (`caption`, `captions`, ...), else
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
    texts = (*true, *(text for text in false if text not in true))
    where = json.dumps([raw.shard.name, raw.key, raw.spans[images[0]]])
    name = hashlib.sha256(where.encode())
    for member in _texts(raw):
        name.update(raw.members[member])
    group = Group(
        key=re.sub(r"[^A-Za-z0-9_\-]", "_", raw.key),
        image_ids=(f"{raw.key} {name.hexdigest()[:12]}",),
        text_ids=texts,
        texts=texts,
        truth=torch.tensor([[text in true for text in texts]]),
        true_ids=(frozenset(true),),
    )
    check(group)
    return group, (images[0],)


def _texts(raw: RawRecord) -> list[str]:
    """The names of the texts of a record, plain ones first."""
    plain = [name for name in TEXTS if name in raw.members]
    return plain + sorted(name for name in raw.members if is_text(name) and name not in TEXTS)


def _captions(raw: RawRecord) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        true, false = captions(_cells(raw))
        lines = raw.members.get("txt", b"").decode("utf-8-sig").splitlines()
        return true or captions({"caption": lines})[0], false
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


def open_manifest(folder: Path) -> Manifest:
    """Returns the manifest of a shard set; tars without one are indexed first.

    An index whose tars have changed, by name, size or time, is made again.
    """
    path = folder / MANIFEST
    if _is_complete(folder, path):
        return read_manifest(folder)
    # A data set that many users share is often read-only.
    if not os.access(folder, os.W_OK):
        digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        path = Path.home() / ".cache/vlmtune/webdataset" / f"{digest}.json"
    with locked(path):
        if not _is_complete(folder, path):
            write_text(path, _index(folder).to_json())
    # Who still waits for the lock finds a complete index, so nothing is left beside the tars.
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    return read_manifest(folder, path)


def _is_complete(folder: Path, path: Path) -> bool:
    """Tells whether nothing is to be indexed: a builder's shards, no tars, or a fresh index."""
    tars = _tars(folder)
    if not path.is_file():
        return not tars
    manifest = parse_manifest(path, str(path))
    if manifest.builder != INDEX:
        return True
    # Tars are padded, so another one often has the same size.
    listed = [(shard.file, shard.bytes) for shard in manifest.shards]
    present = [(tar.name, tar.stat().st_size) for tar in tars]
    return listed == present and manifest.arguments.get(CHANGED) == _changed(tars)


def _changed(tars: list[Path]) -> dict[str, int]:
    return {tar.name: tar.stat().st_mtime_ns for tar in tars}


def _tars(folder: Path) -> list[Path]:
    return [regular(tar) for tar in sorted(folder.glob("*.tar"))]


def _index(folder: Path) -> Manifest:
    """Reads the headers and texts of all tars, and no image."""
    tars = _tars(folder)
    arguments = {CHANGED: _changed(tars)}
    shards: list[ShardInfo] = []
    unusable: list[Damage] = []
    texts = 0
    with progress(f"index of {folder}", len(tars)) as advance:
        for tar in tars:
            state, records, images = hashlib.sha256(), 0, 0
            for raw in read_records(tar, 0, None, images=False):
                records += 1
                try:
                    # The checksum is of texts and places: images are not read here.
                    if isinstance(raw, Damage):
                        raise RecordError(raw.reason)
                    state.update(repr((raw.key, raw.spans, raw.members)).encode())
                    group, _ = decode_sample(raw)
                    texts += int(group.truth.sum())
                    images += 1
                except RecordError as error:
                    unusable.append(Damage(tar, raw.key, str(error)))
            size = tar.stat().st_size
            records = min(records, size // 512)  # the rest of a tar that ends early has no header
            shards.append(ShardInfo(tar.name, records, images, size, state.hexdigest()))
            advance(1)
    total = sum(shard.images for shard in shards) + len(unusable)
    first = f" (first: {unusable[0]})" if unusable else ""
    if len(unusable) == total:
        raise UserError(
            f"expected records of an image and its caption in the tars of {folder}, none of "
            f"{total} can be used{first}: name a folder that img2dataset or `vlmtune build` wrote"
        )
    counts = {"captions": texts}
    if unusable:
        counts["unusable"] = len(unusable)
        log.warning("%d of %d records in %s cannot be used%s", len(unusable), total, folder, first)
    return Manifest(INDEX, arguments, {}, tuple(shards), counts)
