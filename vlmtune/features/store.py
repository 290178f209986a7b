"""The feature store: what is frozen is computed once, kept on disk and read by memory mapping.

It is written under a temporary name and renamed, so that it is there whole or not at all.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlmtune.errors import UserError
from vlmtune.features.files import (
    Blocks,
    DamagedStoreError,
    StoreKey,
    checked_meta,
    source_digest,
    write,
)
from vlmtune.types import Features, Pooled, Tokens

__all__ = [
    "DamagedStoreError",
    "FeatureStore",
    "MemoryStore",
    "StoreKey",
    "locked",
    "make_root",
    "open_or_build",
    "shared",
    "source_digest",
]

COPIED_AT_A_TIME = 256

log = logging.getLogger("vlmtune")


class FeatureStore:
    """An opened store: rows of features by id.

    It travels to worker processes as its path and is mapped again there.

    Args:
        folder: The folder of the store.
        key: The key it must have; None accepts any.

    Attributes:
        ids: The row ids, in storage order.
        meta: What `meta.json` says.

    Raises:
        DamagedStoreError: A file is missing, truncated, changed or of another key.
    """

    def __init__(self, folder: Path, key: StoreKey | None = None) -> None:
        self.folder = Path(folder)
        self.meta = checked_meta(self.folder, key)
        self.ids: tuple[str, ...] = tuple(json.loads((self.folder / "ids.json").read_text()))
        self._index = {name: row for row, name in enumerate(self.ids)}
        dtype, width = getattr(torch, self.meta["key"]["dtype"]), self.meta["width"]
        count = self.meta["files"]["values.bin"]["bytes"] // dtype.itemsize
        self._values = _mapped(self.folder / "values.bin", count, dtype).view(-1, width)
        self._offsets: Tensor | None = None
        if "offsets.bin" in self.meta["files"]:
            offsets = self.folder / "offsets.bin"
            self._offsets = _mapped(offsets, len(self.ids) + 1, torch.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)

    def features(self, ids: Sequence[str], dtype: torch.dtype = torch.float32) -> Features:
        """Returns the rows of `ids`, in their order, tokens padded to the longest.

        Raises:
            UserError: An id is not in the store.
        """
        try:
            rows = torch.tensor([self._index[name] for name in ids], dtype=torch.int64)
        except KeyError:
            missing = [name for name in ids if name not in self._index]
            raise UserError(
                f"expected ids of the {len(self)} stored in {self.folder}, {len(missing)} of "
                f"{len(ids)} are not among them, first {missing[0]!r}: store them first"
            ) from None
        if self._offsets is None:
            return Pooled(self._values[rows].to(dtype))
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        longest = int(lengths.max()) if len(rows) else 0
        position = torch.arange(longest)
        mask = position < lengths[:, None]
        # Padding reads any row that exists; it is zeroed below.
        flat = (starts[:, None] + position).clamp_(max=len(self._values) - 1)
        tokens = self._values.index_select(0, flat.reshape(-1)).to(dtype)
        tokens = tokens.view(len(rows), longest, self.meta["width"])
        if not bool(mask.all()):
            tokens = tokens.masked_fill_(~mask[:, :, None], 0)
        return Tokens(tokens, mask)


class MemoryStore:
    """Features by id for as long as the process lives; padding is not kept.

    Example:
        >>> memory = MemoryStore()
        >>> memory.add(["a", "b"], Pooled(torch.eye(2)))
        >>> memory.features(["b"]).values
        tensor([[0., 1.]])
    """

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def add(self, ids: Sequence[str], features: Features) -> None:
        """Keeps the rows of `features` under `ids`."""
        if isinstance(features, Pooled):
            self._rows.update(zip(ids, features.values, strict=True))
            return
        lengths = features.lengths.tolist()
        for name, tokens, length in zip(ids, features.values, lengths, strict=True):
            self._rows[name] = tokens[:length]

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of `ids`, at least one, in their order; tokens padded to the longest."""
        rows = [self._rows[name] for name in ids]
        if rows[0].ndim == 1:
            return Pooled(torch.stack(rows))
        lengths = torch.tensor([len(row) for row in rows])
        tokens = pad_sequence(rows, batch_first=True)
        return Tokens(tokens, torch.arange(tokens.shape[1]) < lengths[:, None])


def open_or_build(
    root: Path, key: StoreKey, produce: Callable[[], Blocks], rows: int
) -> FeatureStore:
    """Opens the store of `key` under `root`, after building it where it is missing or damaged.

    Two processes that want the same store do not collide: the second waits, then opens.

    Args:
        root: Folder of stores, shared by runs and processes; made if needed.
        key: What the numbers depend on.
        produce: Gives blocks of `(ids, features)`; called only if there is something to build.
            An id that comes again is passed over.
        rows: How many rows `produce` will give, for the announced size and the progress bar.

    Raises:
        UserError: The disk is too small, or features are not finite in `key.dtype`.
    """
    root = Path(root)
    final = root / key.folder
    with contextlib.suppress(DamagedStoreError):
        return FeatureStore(final, key)
    make_root(root)
    with locked(final):
        try:
            return FeatureStore(final, key)  # another process has built it meanwhile
        except DamagedStoreError as reason:
            if os.path.lexists(final):
                log.warning("Rebuilding the feature store %s: %s", final, reason)
        for leftover in root.glob(f".{key.folder}.*"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        temporary = root / f".{key.folder}.{os.getpid()}"
        try:
            write(temporary, final, key, produce(), rows)
            if final.is_symlink() or final.is_file():  # the store is built here, not where it leads
                final.unlink()
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return FeatureStore(final, key)


def make_root(root: Path) -> None:
    """Makes the folder of stores where it is missing.

    Raises:
        UserError: It cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"expected a folder for features, got {root} ({error.strerror}): choose another"
        ) from error


def shared(
    root: Path, key: StoreKey, ids: Iterable[str], encode: Callable[[list[str]], Blocks]
) -> Iterator[tuple[Sequence[str], Features]]:
    """Gives blocks of the rows of `ids`, copied where another store of `root` has them.

    Those are stores of the same backbone, representation and type, whatever they were made for: an
    id must mean the same everywhere (a caption is its own, an image goes by its content).

    Args:
        root: Folder of stores.
        key: That of the store to be made.
        ids: The rows.
        encode: Gives the blocks of ids that no store has; not called where there are none.
    """
    left = dict.fromkeys(ids)
    for other in _others(Path(root), key):
        there = [name for name in left if name in other]
        for start in range(0, len(there), COPIED_AT_A_TIME):
            names = there[start : start + COPIED_AT_A_TIME]
            yield names, other.features(names)
        for name in there:
            del left[name]
    if left:
        yield from encode(list(left))


def _others(root: Path, key: StoreKey) -> Iterator[FeatureStore]:
    """Stores that differ from that of `key` in nothing but their source."""
    for path in sorted(root.glob("*/meta.json")):
        # One that is damaged, or that another process removes, is of no use here.
        with contextlib.suppress(DamagedStoreError, OSError, ValueError, KeyError, TypeError):
            made = json.loads(path.read_text())["key"]
            if made != key.to_dict() and {**made, "source": ""} == {**key.to_dict(), "source": ""}:
                yield FeatureStore(path.parent)


@contextlib.contextmanager
def locked(final: Path) -> Iterator[None]:
    """Lets one process at a time build `final`; the others wait."""
    lock = FileLock(final.with_name(f"{final.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("Waiting for another process that builds %s", final)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _mapped(path: Path, count: int, dtype: torch.dtype) -> Tensor:
    # Not shared: a stray write into a batch could otherwise reach the file.
    return torch.from_file(str(path), shared=False, size=count, dtype=dtype)
