"""A feature store built by all processes that want it: the ranks of a run, or several jobs.

In: a key, ids, and a function that encodes them. Out: the open store.
Never: a piece computed twice, or again after a process was killed.

The ids are cut into pieces. A process takes the next piece that nobody holds, computes it, and
stores it as a folder of its own under `.<folder of the store>.pieces`. When all are there, one
process links their files into the store. A lock that ends with its process tells who holds a piece,
so ranks need no other connection.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vlmtune.features.store import (
    Chunks,
    EmptyStoreError,
    Facts,
    FeatureStore,
    announce,
    check_rows,
    copy_from,
    open_or_build_store,
    similar_stores,
    suffixes,
    write_store,
)
from vlmtune.features.store_key import StoreKey
from vlmtune.storage import folder as folders
from vlmtune.storage.files import remove
from vlmtune.storage.folder import META, DamagedError, FolderWriter, read_meta, read_names

PIECE_ROWS = 2048
"""Rows of a piece; more in stores of more than a million rows."""
MAX_PIECES = 512
EMPTY = "empty"  # a file in place of a piece without rows

Encode = Callable[[list[str]], Chunks]


def open_or_build_together(
    root: Path, key: StoreKey, ids: Sequence[str], encode: Encode
) -> FeatureStore:
    """Opens the store of `ids`, or builds it together with all other processes that want it.

    Rows that another store of the same backbone, representation and type has are copied.
    """
    root = Path(root)
    rows = list(dict.fromkeys(ids))
    # A store of many rows gets larger pieces rather than thousands of files.
    size = max(PIECE_ROWS, -(-len(rows) // MAX_PIECES))
    if len(rows) <= size:
        produce = partial(copy_from, similar_stores(root, key), rows, encode)
        return open_or_build_store(root, key, produce, len(rows))
    # The store may be there already, whoever built it.
    path = root / key.folder
    with contextlib.suppress(DamagedError):
        return FeatureStore(path, key)
    # Missing or damaged: build it anew, from pieces that are there already.
    pieces = _Pieces(root, key, rows, size, encode)
    pieces.compute()
    opened = partial(FeatureStore, path, key)
    store = folders.open_or_build(path, "feature store", opened, pieces.join)
    remove(pieces.folder)
    return store


class _Pieces:
    """The pieces of one store."""

    def __init__(
        self, root: Path, key: StoreKey, ids: Sequence[str], size: int, encode: Encode
    ) -> None:
        self.root = root
        self.key = key
        self.encode = encode
        self.path = root / key.folder
        self.folder = root / f".{key.folder}.pieces"
        self.rows = len(ids)
        starts = range(0, self.rows, size)
        self.ids = [list(ids[start : start + size]) for start in starts]  # of each piece
        self._announced = False

    def compute(self) -> None:
        """Computes pieces until all are there, or the store itself is."""
        # Ranks do not divide the pieces beforehand, so a slow rank takes fewer.
        for wait in (False, True):  # first those that nobody holds, then what killed ones leave
            for piece in range(len(self.ids)):
                is_there = (self._folder(piece) / META).exists()
                if not is_there and self._compute(piece, wait):
                    return

    def join(self, writer: FolderWriter) -> None:
        """Links the files of all pieces into the new store."""
        # Pieces whose ids could all not be encoded have no rows and no file.
        full: dict[Path, dict[str, Any]] = {}
        for piece in range(len(self.ids)):
            meta = self._read(piece)
            if EMPTY not in meta["files"]:
                full[self._folder(piece)] = meta
        if not full:  # another run may find images that can be read
            remove(self.folder)
        check_rows(len(full), self.path)
        ids: list[str] = []
        endings = suffixes(len(full))
        for suffix, folder in zip(endings, full, strict=True):
            files = full[folder]["files"]
            ids += read_names(folder, "ids.json")
            for stem in ("values", "offsets"):
                file = f"{stem}.bin"
                entry = files.get(file)
                if entry:
                    # A hard link: the numbers are neither read nor copied.
                    writer.link(f"{stem}{suffix}.bin", folder / file, entry)
        writer.append("ids.json", json.dumps(ids).encode())
        first_meta = next(iter(full.values()))
        writer.finish(
            self.key.to_dict(), rows=len(ids), width=first_meta["width"], pieces=len(full)
        )

    def _read(self, piece: int) -> dict[str, Any]:
        """Returns `meta.json` of a piece; computes one that is missing or damaged since."""
        folder = self._folder(piece)
        with contextlib.suppress(DamagedError):
            return _checked(folder, self.key)
        remove(folder)
        self._compute(piece, wait=True)
        return _checked(folder, self.key)

    def _compute(self, piece: int, wait: bool) -> bool:
        """Computes a piece, unless another process does; true if that has finished the store."""
        self.folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(self.folder / f"{piece:04d}.held")
        # With -1, the lock is waited for without end.
        timeout = -1 if wait else 0
        try:
            # The lock ends with its process, so a killed process leaves its piece to others.
            held.acquire(timeout=timeout)
        except (Timeout, FileNotFoundError):
            return False
        try:
            # Without a damage it was joined, and the pieces were removed.
            with contextlib.suppress(DamagedError):
                FeatureStore(self.path, self.key)
                return True
            self._write(piece)
            return False
        finally:
            held.release()

    def _write(self, piece: int) -> None:
        folder = self._folder(piece)
        ids = self.ids[piece]

        def write(writer: FolderWriter) -> None:
            # Without a readable image a piece is empty, and marked as finished.
            chunks = copy_from(self._similar, ids, self.encode)
            try:
                write_store(writer, self.key, chunks, len(ids), self._announce)
            except EmptyStoreError:
                writer.append(EMPTY, b"")
                writer.finish(self.key.to_dict())

        opened = partial(_opened, folder)
        folders.open_or_build(folder, "piece of a feature store", opened, write)

    @cached_property
    def _similar(self) -> list[FeatureStore]:
        return list(similar_stores(self.root, self.key))

    def _announce(self, row_bytes: float) -> None:
        if not self._announced:
            announce(self.key, self.path, self.rows, row_bytes)
        self._announced = True

    def _folder(self, piece: int) -> Path:
        return self.folder / f"{piece:04d}"


def _checked(folder: Path, key: StoreKey) -> dict[str, Any]:
    """Checks the files of a piece; returns its `meta.json`."""
    if (folder / EMPTY).exists():
        return read_meta(folder, key.to_dict(), (EMPTY,))
    return read_meta(folder, key.to_dict(), ("ids.json",), Facts)


def _opened(folder: Path) -> None:
    """Checks that a piece is there; whoever joins the pieces checks its files."""
    if not (folder / META).exists():
        raise DamagedError(f"{META}: No such file or directory")
