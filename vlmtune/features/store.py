"""The feature store: frozen features on disk, read by memory mapping.

In: a key, and features by id. Out: rows of features by id, on the CPU or where the store was moved.
Never: live features, or a call of the backbone (see `encode`). A store is built again if its key
changes (backbone weights, preprocessing, layer, type, data) or a file is damaged.

A store is a folder `<stem>-<short digest of its key>` with

    values.bin    pooled vectors (n, d), or the real tokens of all rows one after another (sum t, w)
    offsets.bin   int64 (n + 1), where the tokens of each row begin; tokens only
    ids.json      the n row ids
    meta.json     key, sizes, sha256 of each file, versions

A large store (see `pieces`) has `values-0000.bin`, `offsets-0000.bin` and so on instead, one for
each piece, in the order of `ids.json`.
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NotRequired

import torch
from torch import Tensor
from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.features.store_key import StoreKey
from vlmtune.storage import folder as folders
from vlmtune.storage.files import Count, PositiveCount, read_json
from vlmtune.storage.folder import DamagedError, FolderWriter
from vlmtune.storage.progress import progress
from vlmtune.types import Features, Pooled, Tokens, concatenate, send

COPIED_AT_A_TIME = 256  # rows, whose tokens are in memory together
FRACTION = 0.1  # of the free memory of a GPU, which stores may take: the step needs the rest

Chunks = Iterable[tuple[Sequence[str], Features]]
"""Ids and their features, a few at a time."""

log = logging.getLogger("vlmtune")


class EmptyStoreError(UserError):
    """There is no row to store."""


class Facts(TypedDict):
    """What `meta.json` says of the rows."""

    rows: PositiveCount
    width: PositiveCount
    pieces: NotRequired[Count]


_Piece = tuple[Tensor, Tensor | None]
"""The values of a piece, and where the tokens of each row begin, on the CPU; None if pooled."""


class FeatureStore:
    """An opened store: rows of features by id.

    It travels to worker processes as its path and is mapped again there, on the CPU.

    Args:
        folder: The folder of the store.
        key: The key it must have; None accepts any.

    Attributes:
        ids: The row ids, in storage order.
        meta: The content of `meta.json`.

    Raises:
        DamagedError: A file is missing, truncated, changed or of another key.
    """

    def __init__(self, folder: Path, key: StoreKey | None = None) -> None:
        self.folder = Path(folder)
        expected = None if key is None else key.to_dict()
        self.meta = folders.read_meta(self.folder, expected, ("ids.json",), Facts)
        self.ids = folders.read_names(self.folder, "ids.json")
        self._row = {name: row for row, name in enumerate(self.ids)}
        self._pieces: list[_Piece] = []
        # A damaged `meta.json` may name billions of pieces, and opening them would not end.
        pieces = min(self.meta.get("pieces", 0), len(self.ids))
        try:
            self._pieces = list(map(self._piece, suffixes(pieces)))
        except (KeyError, TypeError, RuntimeError):
            self._pieces = []  # which have too few rows, and are refused below
        counts = list(map(_row_count, self._pieces))
        if not sum(counts) == len(self.ids) == self.meta["rows"]:
            raise DamagedError("meta.json contradicts itself")
        # Rows are numbered through all pieces: piece p begins at row `_starts[p]`.
        self._starts = torch.tensor([0, *counts]).cumsum(0)

    def _piece(self, suffix: str) -> _Piece:
        """The values of a piece, and where the tokens of each of its rows begin."""
        key = self.meta["key"]
        dtype = getattr(torch, key["dtype"])
        numbers = self._mapped(f"values{suffix}.bin", dtype)
        values = numbers.view(-1, self.meta["width"])
        if key["spec"]["kind"] == "pooled":
            return values, None
        offsets = self._mapped(f"offsets{suffix}.bin", torch.int64)
        return values, offsets

    def _mapped(self, name: str, dtype: torch.dtype) -> Tensor:
        path = self.folder / name
        entry = self.meta["files"][name]
        count = entry["bytes"] // dtype.itemsize
        # Not shared: a stray write into a batch could otherwise reach the file.
        return torch.from_file(str(path), shared=False, size=count, dtype=dtype)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, name: str) -> bool:
        return name in self._row

    @property
    def value_bytes(self) -> int:
        """Bytes of all values in memory, or on the device that they were moved to."""
        return sum(values.numel() * values.element_size() for values, _ in self._pieces)

    def move_to(self, device: torch.device) -> None:
        """Copies all values to a device, where rows are read from now on."""
        self._pieces = [(values.to(device), offsets) for values, offsets in self._pieces]

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.folder,)

    def features(self, ids: Sequence[str]) -> Features:
        """Returns the rows of `ids` in float32, in their order, tokens padded to the longest."""
        try:
            numbers = [self._row[name] for name in ids]
        except KeyError:
            missing = [name for name in ids if name not in self._row]
            raise UserError(
                f"expected ids of the {len(self)} stored in {self.folder}, {len(missing)} of "
                f"{len(ids)} are not among them, first {missing[0]!r}: store them first"
            ) from None
        rows = torch.tensor(numbers, dtype=torch.int64)
        if len(self._pieces) == 1 or not len(rows):
            return self._read(0, rows)
        # Rows of one piece are read together; the order is restored at the end.
        piece_of_row = torch.bucketize(rows, self._starts, right=True) - 1
        parts = []
        positions = []  # of the rows of each part, among `ids`
        for piece in piece_of_row.unique().tolist():
            of_piece = (piece_of_row == piece).nonzero().flatten()
            rows_in_piece = rows[of_piece] - self._starts[piece]
            parts.append(self._read(piece, rows_in_piece))
            positions.append(of_piece)
        order = torch.cat(positions).argsort()
        return concatenate(parts).take(order)

    def _read(self, piece: int, rows: Tensor) -> Features:
        """The rows of one piece, by their numbers in it."""
        values, offsets = self._pieces[piece]
        if offsets is None:
            return Pooled(values.index_select(0, send(rows, values.device)).float())
        # Tokens of all rows lie one after another; `offsets` says where each row begins.
        starts = offsets[rows]
        lengths = offsets[rows + 1] - starts
        longest = int(lengths.max()) if len(rows) else 0
        position = torch.arange(longest)
        mask = position < lengths[:, None]
        # (n, longest) numbers of stored tokens. Padding reads any that exists; it is zeroed below.
        numbers = starts[:, None] + position
        numbers.clamp_(max=len(values) - 1)
        in_order = send(numbers.flatten(), values.device)
        flat = values.index_select(0, in_order).float()
        tokens = flat.view(len(rows), longest, self.meta["width"])
        has_padding = not bool(mask.all())
        mask = send(mask, values.device)
        if has_padding:
            tokens.masked_fill_(~mask[:, :, None], 0)
        return Tokens(tokens, mask, noted_lengths=lengths)


def _row_count(piece: _Piece) -> int:
    values, offsets = piece
    if offsets is None:
        return len(values)
    return len(offsets) - 1  # the last offset is the end of the last row


def move_together(stores: Sequence[FeatureStore], device: torch.device, free: int) -> None:
    """Moves stores to a GPU with `free` bytes if all fit; a step then copies no rows."""
    if sum(store.value_bytes for store in stores) <= FRACTION * free:
        for store in stores:
            store.move_to(device)


def suffixes(pieces: int) -> list[str]:
    """The endings of the file names of each piece; a store in one piece has none.

    Example:
        >>> suffixes(0), suffixes(2)
        ([''], ['-0000', '-0001'])
    """
    if not pieces:
        return [""]
    return [f"-{piece:04d}" for piece in range(pieces)]


def open_or_build_store(
    root: Path, key: StoreKey, produce: Callable[[], Chunks], rows: int
) -> FeatureStore:
    """Opens the store of `key` under `root`, after building it if it is missing or damaged.

    `produce` gives the features and is called only to build; only the first row of an id is stored.
    `rows`, the expected number, announces the size.
    """
    path = Path(root) / key.folder

    def write(writer: FolderWriter) -> None:
        tell = partial(announce, key, path, rows)
        write_store(writer, key, produce(), rows, tell)

    opened = partial(FeatureStore, path, key)
    return folders.open_or_build(path, "feature store", opened, write)


def copy_from(
    stores: Iterable[FeatureStore], ids: Iterable[str], encode: Callable[[list[str]], Chunks]
) -> Iterator[tuple[Sequence[str], Features]]:
    """Copies rows from stores, and encodes those that none has.

    An id must mean the same in all stores: a caption is its own id, an image has the digest of its
    content.
    """
    # A dictionary, as it keeps the order and forgets quickly.
    missing = dict.fromkeys(ids)
    for store in stores:
        known = [name for name in missing if name in store]
        for start in range(0, len(known), COPIED_AT_A_TIME):
            names = known[start : start + COPIED_AT_A_TIME]
            yield names, store.features(names)
        for name in known:
            del missing[name]
        if not missing:  # to open another store, all of it may be read
            return
    if missing:
        yield from encode(list(missing))


def similar_stores(root: Path, key: StoreKey) -> Iterator[FeatureStore]:
    """Opens the stores of the same backbone, representation and type, from another source."""
    wanted = key.to_dict()
    source = wanted.pop("source")
    for path in sorted(root.glob("*/meta.json")):
        # Skip a store that is damaged, or that another process removes.
        with contextlib.suppress(DamagedError, OSError, ValueError, KeyError, TypeError):
            meta = read_json(path, folders.META, shape=dict[str, Any])
            other = dict(meta["key"])
            other_source = other.pop("source")
            if other == wanted and other_source != source:
                yield FeatureStore(path.parent)


def write_store(
    writer: FolderWriter, key: StoreKey, chunks: Chunks, rows: int, tell: Callable[[float], None]
) -> None:
    """Writes the files of a store; `tell` gets the bytes of a row before the first is written."""
    ids: dict[str, None] = {}  # in the order of their rows
    lengths = [torch.zeros(1, dtype=torch.int64)]
    width = 0
    with progress(f"storing {key.modality} features", rows) as advance:
        for names, features in chunks:
            assert len(names) == len(features)
            is_first_chunk = not ids
            new = []
            for row, name in enumerate(names):
                if name not in ids:  # an id that comes again keeps its first row
                    ids[name] = None
                    new.append(row)
            new_rows = torch.tensor(new, dtype=torch.int64)
            flat, counts = _flatten(features[new_rows], key)
            if is_first_chunk:
                size = flat.numel() * flat.element_size()
                tell(size / len(new))
            width = flat.shape[1]
            writer.append("values.bin", as_bytes(flat))
            lengths.append(counts)
            advance(len(names))
    check_rows(len(ids), writer.folder.parent)
    # Pooled rows have one length, so they need no offsets.
    if key.spec.kind != "pooled":
        offsets = torch.cat(lengths).cumsum(0)
        writer.append("offsets.bin", as_bytes(offsets))
    id_list = json.dumps(list(ids))
    writer.append("ids.json", id_list.encode())
    writer.finish(key.to_dict(), rows=len(ids), width=width)


def check_rows(rows: int, path: Path) -> None:
    """Raises an `EmptyStoreError` where a store would have no rows."""
    if not rows:
        raise EmptyStoreError(f"expected rows to store in {path}, got none: check the data source")


def as_bytes(values: Tensor) -> Any:
    """The bytes of a tensor as a file has them, row after row."""
    return values.contiguous().reshape(-1).view(torch.uint8).numpy()


def _flatten(features: Features, key: StoreKey) -> tuple[Tensor, Tensor]:
    """Returns the real rows, (sum t, w) or (n, d), in the stored type, and their number by id."""
    if isinstance(features, Pooled):
        flat = features.values
        counts = torch.ones(len(features), dtype=torch.int64)
    else:
        counts = features.lengths
        # Only real tokens are stored, so they must be a prefix of each row to be found again.
        positions = torch.arange(features.mask.shape[1])
        prefix = positions < counts[:, None]
        assert prefix.equal(features.mask.cpu()), "real tokens come before padding"
        flat = features.values[features.mask]
    dtype = getattr(torch, key.dtype)
    flat = flat.detach().to(device="cpu", dtype=dtype)
    if not bool(torch.isfinite(flat).all()):
        raise UserError(
            f"expected finite {key.modality} features in {key.dtype}, got NaN or infinity: "
            "use dtype float32, or check the backbone's weights"
        )
    return flat, counts


def announce(key: StoreKey, path: Path, rows: int, row_bytes: float) -> None:
    """Logs the expected size before anything is written."""
    # Rows of tokens differ in length, so the first rows give an estimate.
    bytes_needed = int(row_bytes * rows)
    bytes_free = shutil.disk_usage(path.parent).free
    needed = _readable(bytes_needed)
    free = _readable(bytes_free)
    content = f"{key.spec.kind} of {rows} {key.modality}s"
    log.info("Storing %s: about %s in %s (%s free)", content, needed, path, free)
    if bytes_needed > bytes_free:
        raise UserError(
            f"expected {needed} of disk for the features of {rows} {key.modality}s, got "
            f"{free} free in {path.parent}: free some, choose another folder, or "
            "dtype float16"
        )


def _readable(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"
