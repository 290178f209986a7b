"""Builds the similarity cache, from coarse to fine: similar images first, then their captions.

Each block of images is a file of its own, written under a temporary name and renamed, so that a
build that was killed goes on after the last whole block. The cache itself is there whole or not at
all.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

import vlmtune
from vlmtune.data.neighbours import ARRAYS, DamagedCacheError, SimilarityCache, array_file, entry
from vlmtune.errors import UserError
from vlmtune.features.files import progress
from vlmtune.features.store import locked, make_root
from vlmtune.mining.nearest import nearest

VERSION = 1
Score = Callable[[Sequence[str], Sequence[str], Int[Tensor, "P 2"]], Float[Tensor, "P"]]
"""Scores pairs (row of the image ids, row of the captions); higher is a better fit."""

Block = dict[str, np.ndarray]
_PARTS = ("neighbours", "similarities", "counts", "captions", "scores")

log = logging.getLogger("vlmtune")


@dataclass(frozen=True)
class CacheKey:
    """What a cache depends on; another key is another cache.

    Attributes:
        backbone: Fingerprint of the backbone whose image features are compared.
        scorer: Digest of the adapter (its spec and weights) that scores captions; "" for none.
        source: Digest of the corpus.
        neighbours: k, images kept for each image at most. EqSim keeps 128.
        block: Images in a block.

    Raises:
        UserError: A number is below 1.

    Example:
        >>> CacheKey("f00d", "", "cafe").folder
        'neighbours-128-50c9a93f6fd51f13'
    """

    backbone: str
    scorer: str
    source: str
    neighbours: int = 128
    block: int = 32

    def __post_init__(self) -> None:
        if min(self.neighbours, self.block) < 1:
            raise UserError(
                f"expected neighbours and a block of at least 1, got {self.neighbours} and "
                f"{self.block}: raise them"
            )

    def to_dict(self) -> dict[str, Any]:
        """The key as JSON values."""
        return {**asdict(self), "version": VERSION}

    @property
    def digest(self) -> str:
        """Hex digest of the key."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    @property
    def folder(self) -> str:
        """Name of the cache's folder."""
        return f"neighbours-{self.neighbours}-{self.digest[:16]}"


def open_or_build(
    root: Path,
    key: CacheKey,
    captions: Mapping[str, Sequence[str]],
    features: Callable[[], Float[Tensor, "n d"]],
    score: Score | None = None,
) -> SimilarityCache:
    """Opens the cache of `key` under `root`, after building it where it is missing or damaged.

    Two processes that want the same cache do not collide: the second waits, then opens. Building
    takes memory for the features and, at its end, about 32 bytes for each scored pair.

    Args:
        root: Folder of caches; made if needed.
        key: What the numbers depend on.
        captions: By image id the captions known to be true of the n images.
        features: Gives the images' features, in the order of `captions`; called only where a block
            is missing.
        score: Scores an image against captions of its neighbours; None to compare images alone.

    Raises:
        UserError: There are fewer than two images, features or scores are not finite, or the disk
            cannot be written.

    Example:
        >>> import tempfile
        >>> captions = {"cat": ["a cat"], "dog": ["a dog"], "car": ["a car"]}
        >>> x = torch.tensor([[1.0, 0.2], [1.0, 0.3], [0.0, 1.0]])
        >>> with tempfile.TemporaryDirectory() as root:
        ...     key = CacheKey("backbone", "", "corpus", neighbours=1)
        ...     open_or_build(Path(root), key, captions, lambda: x).similar("cat")
        ['dog']
    """
    if len(captions) < 2:
        raise UserError(
            f"expected at least 2 images to compare, got {len(captions)}: check the shards"
        )
    final = Path(root) / key.folder
    with contextlib.suppress(DamagedCacheError):
        return _opened(final, key, captions)
    make_root(Path(root))
    with locked(final):
        try:
            return _opened(final, key, captions)  # another process has built it meanwhile
        except DamagedCacheError as reason:
            if final.exists():
                log.warning("Rebuilding the similarity cache %s: %s", final, reason)
        try:
            _Building(final, key, captions, features, score).run()
        except OSError as error:
            raise UserError(
                f"expected to write a similarity cache to {root}, got {error.strerror}: "
                "free the disk or choose another folder"
            ) from error
    return _opened(final, key, captions)


def _opened(final: Path, key: CacheKey, captions: Mapping[str, Sequence[str]]) -> SimilarityCache:
    cache = SimilarityCache(final, key.to_dict())
    if cache.image_ids != tuple(captions):  # of one corpus more images may be readable than before
        raise DamagedCacheError("it is of other images")
    return cache


class _Building:
    """One build, as far as a former one got and then to its end."""

    def __init__(
        self,
        final: Path,
        key: CacheKey,
        captions: Mapping[str, Sequence[str]],
        features: Callable[[], Tensor],
        score: Score | None,
    ) -> None:
        self.final, self.key, self.features, self.score = final, key, features, score
        self.images = list(captions)
        self.texts = sorted({text for several in captions.values() for text in several})
        column = {text: number for number, text in enumerate(self.texts)}
        self.true = [
            np.array(sorted({column[text] for text in several}), dtype=np.int32)
            for several in captions.values()
        ]
        self.k = min(key.neighbours, len(self.images) - 1)
        # Numbers of images and captions in blocks mean something for these images only.
        names = json.dumps([self.images, self.texts, [some.tolist() for some in self.true]])
        digest = hashlib.sha256(names.encode()).hexdigest()[:16]
        self.blocks = final.with_name(f".{final.name}.{digest}.blocks")

    def run(self) -> None:
        for leftover in self.final.parent.glob(f".{self.final.name}.*"):  # of a killed process
            if leftover != self.blocks:
                shutil.rmtree(leftover, ignore_errors=True)
        self.blocks.mkdir(exist_ok=True)
        size = self.key.block
        all_rows = [
            range(start, min(start + size, len(self.images)))
            for start in range(0, len(self.images), size)
        ]
        with progress("finding neighbours", len(self.images)) as advance:
            bank: Tensor | None = None
            for number, rows in enumerate(all_rows):
                if self._block(number, rows) is None:
                    bank = self._bank() if bank is None else bank
                    self._write(number, self._made(bank, rows))
                advance(len(rows))
        temporary = self.final.with_name(f".{self.final.name}.{os.getpid()}")
        try:
            self._join(temporary, all_rows)
            shutil.rmtree(self.final, ignore_errors=True)
            temporary.rename(self.final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(self.blocks, ignore_errors=True)

    def _bank(self) -> Tensor:
        bank = normalize(self.features().float(), dim=1)
        if len(bank) != len(self.images):
            raise ValueError(f"expected features of {len(self.images)} images, got {len(bank)}")
        if not bool(torch.isfinite(bank).all()):
            raise UserError(
                "expected finite features of images, got NaN or infinity: check the backbone's "
                "weights"
            )
        return bank

    # -- one block ----------------------------------------------------------------------------

    def _made(self, bank: Tensor, rows: range) -> Block:
        found, similarity = (x.cpu().numpy() for x in nearest(bank, rows, self.k))
        sizes = np.zeros(len(rows), dtype=np.int64)
        columns, scores = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32)
        if self.score is not None:
            false = [self._false(row, found[i]) for i, row in enumerate(rows)]
            sizes = np.array([len(some) for some in false], dtype=np.int64)
            columns = np.concatenate(false)
            scores = self._scored(rows, np.repeat(np.arange(len(rows)), sizes), columns)
            order = np.lexsort((columns, -scores, np.repeat(np.arange(len(rows)), sizes)))
            columns, scores = columns[order], scores[order]
        values = (found.astype(np.int32), similarity, sizes, columns, scores)
        return dict(zip(_PARTS, values, strict=True))

    def _false(self, row: int, neighbours: np.ndarray) -> np.ndarray:
        """The captions of neighbours that are not known to be true of the image, each once."""
        theirs = np.concatenate([self.true[j] for j in neighbours])
        return np.setdiff1d(theirs, self.true[row])

    def _scored(self, rows: range, i: np.ndarray, columns: np.ndarray) -> np.ndarray:
        assert self.score is not None
        if not len(columns):
            return np.empty(0, dtype=np.float32)
        used, j = np.unique(columns, return_inverse=True)
        pairs = torch.from_numpy(np.stack([i, j.reshape(-1)], axis=1))
        images = self.images[rows.start : rows.stop]
        scores = self.score(images, [self.texts[column] for column in used], pairs)
        if scores.shape != (len(pairs),):
            raise ValueError(f"expected {len(pairs)} scores, got shape {tuple(scores.shape)}")
        if not bool(torch.isfinite(scores).all()):
            raise UserError(
                "expected finite scores of captions, got NaN or infinity: check the model's weights"
            )
        return scores.detach().float().cpu().numpy()

    def _write(self, number: int, block: Block) -> None:
        path = self._path(number)
        temporary = path.with_name(f".{path.name}")
        with temporary.open("wb") as file:
            np.savez(file, **block)  # pyright: ignore[reportArgumentType]
        temporary.replace(path)

    def _block(self, number: int, rows: range) -> Block | None:
        """Returns a finished block, or None where there is none or it is damaged."""
        try:
            # Opened here, as numpy leaves a file open that is no archive.
            with self._path(number).open("rb") as file:
                arrays = np.load(file, allow_pickle=False)
                block = {name: arrays[name] for name in _PARTS}  # zip checks each by its CRC
        except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile):
            return None
        pairs = int(block["counts"].sum())
        shapes = [(len(rows), self.k), (len(rows), self.k), (len(rows),), (pairs,), (pairs,)]
        return block if [block[name].shape for name in _PARTS] == shapes else None

    def _path(self, number: int) -> Path:
        return self.blocks / f"{number:06d}.npz"

    # -- the whole ----------------------------------------------------------------------------

    def _join(self, folder: Path, all_rows: Sequence[range]) -> None:
        """Writes the cache of all blocks into `folder`."""
        folder.mkdir()
        counts = []
        for block in self._finished(all_rows):
            counts.append(block["counts"])
            for name in ("neighbours", "similarities", "captions", "scores"):
                _append(folder, name, block[name])
        counts = np.concatenate(counts)
        _append(folder, "image_offsets", _offsets(counts))
        _append(folder, "true_offsets", _offsets(np.array([len(some) for some in self.true])))
        _append(folder, "true", np.concatenate(self.true))
        self._turn(folder, counts)
        for name, names in (("images", self.images), ("captions", self.texts)):
            (folder / f"{name}.json").write_text(json.dumps(names), encoding="utf-8")
        meta = {
            "key": self.key.to_dict(),
            "digest": self.key.digest,
            "neighbours": self.k,
            "captions": len(self.texts),
            "scored": self.score is not None,
            "files": {path.name: entry(path) for path in sorted(folder.iterdir())},
            "written_with": {"vlmtune": vlmtune.__version__, "torch": torch.__version__},
        }
        (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")

    def _finished(self, all_rows: Sequence[range]) -> Iterator[Block]:
        for number, rows in enumerate(all_rows):
            block = self._block(number, rows)
            if block is None:
                raise OSError(None, f"block {number} is gone")
            yield block

    def _turn(self, folder: Path, counts: np.ndarray) -> None:
        """Writes the table of the captions: the same pairs by caption, highest score first."""
        columns = np.fromfile(array_file(folder, "captions"), ARRAYS["captions"])
        scores = np.fromfile(array_file(folder, "scores"), ARRAYS["scores"])
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        order = np.lexsort((rows, -scores, columns))
        _append(folder, "images", rows[order])
        _append(folder, "image_scores", scores[order])
        _append(
            folder, "caption_offsets", _offsets(np.bincount(columns, minlength=len(self.texts)))
        )


def _append(folder: Path, name: str, values: np.ndarray) -> None:
    with array_file(folder, name).open("ab") as file:
        file.write(np.ascontiguousarray(values, dtype=ARRAYS[name]).tobytes())


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)])
