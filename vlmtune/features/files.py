"""The files of a feature store: their key, how they are written and how they are checked.

A store is a folder `<stem>-<short digest of its key>` with

    values.bin    pooled vectors (n, d), or the real tokens of all rows one after another (sum t, w)
    offsets.bin   int64 (n + 1), where the tokens of each row begin; tokens only
    ids.json      the n row ids
    meta.json     key, sizes, sha256 of each file, versions
"""

import contextlib
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from rich.console import Console
from rich.errors import LiveError
from rich.progress import Progress
from torch import Tensor

import vlmtune
from vlmtune.errors import UserError
from vlmtune.types import Features, FeatureSpec, Pooled

VERSION = 1
ALWAYS_CHECKED = 256 * 2**20
"""Files up to this many bytes are checked by sha256 at each opening, larger ones when touched."""

DType = Literal["float32", "float16", "bfloat16"]
Blocks = Iterable[tuple[Sequence[str], Features]]

log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class StoreKey:
    """What the stored numbers depend on; another key is another store.

    Attributes:
        backbone: `Backbone.fingerprint`.
        modality: "image" or "text".
        reads: The representation, which must be frozen.
        source: Digest of what was encoded: `source_digest` of captions, or of digests of images.
        dtype: The type the numbers are stored as.

    Raises:
        UserError: `reads` is not frozen: it changes with every training step. Or it is of words,
            a table whose ids a store would lose.

    Example:
        >>> StoreKey("f00d", "text", FeatureSpec("tokens", -2), "cafe", "float16").folder
        'text-tokens-2-float16-dc741c79e0b8a067'
    """

    backbone: str
    modality: Literal["image", "text"]
    reads: FeatureSpec
    source: str
    dtype: DType = "float32"

    def __post_init__(self) -> None:
        if not self.reads.frozen or self.reads.kind == "words":
            live = "" if self.reads.frozen else "live "
            raise UserError(
                f"expected a frozen representation to store, got {live}{self.reads.kind} of "
                f"{self.modality}s: encode them in each step"
            )
        if self.dtype not in ("float32", "float16", "bfloat16"):
            raise UserError(
                f"expected dtype float32, float16 or bfloat16, got {self.dtype!r}: choose one"
            )

    def to_dict(self) -> dict[str, Any]:
        """The key as JSON values; the layer is left out where nothing depends on it."""
        key = asdict(self)
        if self.reads.kind == "pooled":
            del key["reads"]["layer"]
        return {**key, "version": VERSION}

    @property
    def folder(self) -> str:
        """Name of the store's folder."""
        digest = hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode())
        layer = "" if self.reads.kind == "pooled" else str(self.reads.layer)
        stem = f"{self.modality}-{self.reads.kind}{layer}-{self.dtype}"
        return f"{stem}-{digest.hexdigest()[:16]}"


def source_digest(parts: Iterable[str]) -> str:
    """Digest of a set of strings (captions, image digests, shard checksums), whatever their order.

    Example:
        >>> source_digest(["a", "b"]) == source_digest(["b", "a", "a"]) != source_digest(["ab"])
        True
    """
    state = hashlib.sha256()
    for part in sorted(set(parts)):
        data = part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


class DamagedStoreError(Exception):
    """Why a folder is not the store it should be."""


class _HashedFile:
    """A file that is written once, with the sha256 of what was written."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self.path = path
        self.file: BinaryIO = stack.enter_context(path.open("wb"))
        self.state = hashlib.sha256()

    def write(self, values: Tensor) -> None:
        data: Any = values.contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            self.file.write(data)
            self.file.flush()
        except OSError as error:
            raise UserError(
                f"expected to write features to {self.path.parent.parent}, got {error.strerror}: "
                "free the disk or choose another folder"
            ) from error
        self.state.update(data)

    def entry(self) -> dict[str, Any]:
        status = self.path.stat()
        return {
            "bytes": status.st_size,
            "sha256": self.state.hexdigest(),
            "mtime_ns": status.st_mtime_ns,
        }


def write(folder: Path, final: Path, key: StoreKey, blocks: Blocks, rows: int) -> None:
    """Writes a whole store into `folder`, to be renamed to `final`.

    Raises:
        UserError: The disk is too small, or features are not finite in `key.dtype`.
    """
    folder.mkdir()
    ids: dict[str, None] = {}
    width = 0
    lengths = [torch.zeros(1, dtype=torch.int64)]
    with contextlib.ExitStack() as stack:
        values = _HashedFile(folder / "values.bin", stack)
        for names, features in _announced(blocks, key, final, rows):
            assert len(names) == len(features)
            fresh = []
            for i, name in enumerate(names):
                if name not in ids:
                    ids[name] = None
                    fresh.append(i)
            flat, counts = _flatten(features[torch.tensor(fresh, dtype=torch.int64)], key)
            assert width in (0, flat.shape[1]), "blocks of one width"
            width = flat.shape[1]
            values.write(flat)
            lengths.append(counts)
        files = {"values.bin": values}
        if not ids:
            raise UserError(f"expected rows to store in {final}, got none: check the data source")
        if key.reads.kind != "pooled":
            files["offsets.bin"] = _HashedFile(folder / "offsets.bin", stack)
            files["offsets.bin"].write(torch.cat(lengths).cumsum(0))
        text = torch.frombuffer(bytearray(json.dumps(list(ids)).encode()), dtype=torch.uint8)
        files["ids.json"] = _HashedFile(folder / "ids.json", stack)
        files["ids.json"].write(text)
        meta = {
            "key": key.to_dict(),
            "rows": len(ids),
            "width": width,
            "files": {name: file.entry() for name, file in files.items()},
            "written_with": {"vlmtune": vlmtune.__version__, "torch": torch.__version__},
        }
        (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal, and nothing elsewhere; gives the function that advances it."""
    bar = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    with contextlib.suppress(LiveError):  # a trainer's bar is on the screen; it stays alone
        bar.start()
    task = bar.add_task(what, total=total)
    try:
        yield lambda count: bar.advance(task, count)
    finally:
        bar.stop()


def _announced(blocks: Blocks, key: StoreKey, final: Path, rows: int) -> Iterator[Any]:
    """Passes blocks on; says the expected size after the first, before anything is written."""
    with progress(f"storing {key.modality} features", rows) as advance:
        for number, (names, features) in enumerate(blocks):
            if number == 0:
                size = int(_bytes_per_row(features, key) * max(rows, len(names)))
                _announce(size, key, final, rows)
            yield names, features
            advance(len(names))


def _announce(size: int, key: StoreKey, final: Path, rows: int) -> None:
    free = shutil.disk_usage(final.parent).free
    log.info(
        "Storing %s of %d %ss: about %s in %s (%s free)",
        key.reads.kind, rows, key.modality, _readable(size), final, _readable(free),
    )  # fmt: skip
    if size > free:
        raise UserError(
            f"expected {_readable(size)} of disk for the features of {rows} {key.modality}s, got "
            f"{_readable(free)} free in {final.parent}: free some, choose another folder, or "
            "dtype float16"
        )


def _bytes_per_row(features: Features, key: StoreKey) -> float:
    flat, counts = _flatten(features, key)
    return flat.numel() * flat.element_size() / max(len(counts), 1)


def _flatten(features: Features, key: StoreKey) -> tuple[Tensor, Tensor]:
    """Returns the real rows, (sum t, w) or (n, d), in the stored type and how many each id has."""
    if isinstance(features, Pooled):
        flat, counts = features.values, torch.ones(len(features), dtype=torch.int64)
    else:
        counts = features.lengths.cpu()
        prefix = torch.arange(features.mask.shape[1]) < counts[:, None]
        assert prefix.equal(features.mask.cpu()), "real tokens come before padding"
        flat = features.values[features.mask]
    flat = flat.detach().to(device="cpu", dtype=getattr(torch, key.dtype))
    if not bool(torch.isfinite(flat).all()):
        raise UserError(
            f"expected finite {key.modality} features in {key.dtype}, got NaN or infinity: "
            "use dtype float32, or check the backbone's weights"
        )
    return flat, counts


def checked_meta(folder: Path, key: StoreKey | None) -> dict[str, Any]:
    """Returns what `meta.json` says, after comparing every file with it.

    Raises:
        DamagedStoreError: The folder is not a whole store, or not that of `key`.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text())
        made, rows, width = meta["key"], int(meta["rows"]), int(meta["width"])
        pooled = made["reads"]["kind"] == "pooled"
        item = getattr(torch, made["dtype"]).itemsize
        entries = ("bytes", "sha256", "mtime_ns")
        files = {name: {e: meta["files"][name][e] for e in entries} for name in _names(pooled)}
    except OSError as error:
        raise DamagedStoreError(f"meta.json: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError("meta.json is not that of a feature store") from error
    if key is not None and made != key.to_dict():
        raise DamagedStoreError("it belongs to another key")
    size = files["values.bin"]["bytes"]
    least = max(rows, 1) * max(width, 1) * item
    if min(rows, width) < 1 or size < least or size % (width * item) or (pooled and size > least):
        raise DamagedStoreError("meta.json contradicts itself")
    for name, entry in files.items():
        if reason := _wrong(folder / name, entry):
            raise DamagedStoreError(f"{name} {reason}")
    return meta


def _names(pooled: bool) -> tuple[str, ...]:
    """The files of a store beside meta.json."""
    return ("values.bin", "ids.json") if pooled else ("values.bin", "offsets.bin", "ids.json")


def _wrong(path: Path, entry: dict[str, Any]) -> str | None:
    try:
        status = path.stat()
        if status.st_size != entry["bytes"]:
            return f"has {status.st_size} bytes, not {entry['bytes']}"
        if status.st_size > ALWAYS_CHECKED and status.st_mtime_ns == entry["mtime_ns"]:
            return None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if digest == entry["sha256"] else "was changed after it was written"


def _readable(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"
