"""The manifest of WebDataset tars that others wrote: an index, made at first use.

In: a folder of tars without the manifest of a builder. Out: their manifest. Never: a changed tar,
or an image that is read.

The manifest counts the records of each tar, as that of a builder does, so order, resuming and
reports of damage are those of our own shards. It lies beside the tars or, where that
folder cannot be written, in `~/.cache/vlmtune/webdataset`.
"""

import hashlib
import logging
import os
from pathlib import Path

from vlmtune.data.schema import (
    INDEX,
    MANIFEST,
    Manifest,
    RecordError,
    ShardInfo,
    parse_manifest,
    read_manifest,
)
from vlmtune.data.tar_records import Damage, read_records
from vlmtune.data.webdataset import decode_header
from vlmtune.errors import UserError
from vlmtune.storage.files import regular, write_text
from vlmtune.storage.folder import locked
from vlmtune.storage.progress import progress

CHANGED = "mtime_ns"  # the argument of the builder INDEX: when each tar was written last
log = logging.getLogger("vlmtune")


def open_manifest(folder: Path) -> Manifest:
    """Returns the manifest of a folder of tars, which are indexed first if they have none.

    An index whose tars have changed, by name, size or time, is made again.
    """
    path = folder / MANIFEST
    if _is_complete(folder, path):
        return read_manifest(folder)
    # A data set that many users share is often read-only.
    if not os.access(folder, os.W_OK):
        resolved = str(folder.resolve())
        digest = hashlib.sha256(resolved.encode()).hexdigest()[:16]
        path = Path.home() / ".cache/vlmtune/webdataset" / f"{digest}.json"
    with locked(path):
        if not _is_complete(folder, path):
            write_text(path, _index(folder).to_json())
    # Who still waits for the lock finds a complete index, so nothing is left beside the tars.
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    return read_manifest(folder, path)


def _is_complete(folder: Path, path: Path) -> bool:
    """Tells whether nothing is to be indexed: no tars, or a fresh index."""
    tars = _tars(folder)
    if not path.is_file():
        return not tars  # without tars `read_manifest` says what is missing
    manifest = parse_manifest(path, str(path))
    listed = [(shard.file, shard.bytes) for shard in manifest.shards]
    present = [(tar.name, tar.stat().st_size) for tar in tars]
    # Tars are padded, so another one often has the same size: its time differs.
    same_times = manifest.arguments.get(CHANGED) == _changed(tars)
    return listed == present and same_times


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
            state = hashlib.sha256()
            records = 0
            images = 0
            for raw in read_records(tar, images=False):
                records += 1
                if isinstance(raw, Damage):
                    unusable.append(raw)
                    continue
                try:
                    # The checksum is of texts and places: images are not read here.
                    facts = (raw.key, raw.spans, raw.members)
                    state.update(repr(facts).encode())
                    group, files = decode_header(raw)
                    texts += int(group.truth.any(0).sum())
                    images += len(files)
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
