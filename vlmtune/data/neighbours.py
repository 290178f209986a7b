"""The similarity cache: for each image those that look like it, and their captions by hardness.

A cache is a folder with the n images, M captions and

    neighbours.bin      int32 (n, k), images in order of falling similarity
    similarities.bin    float32 (n, k), cosines of image features
    true_offsets.bin    int64 (n + 1)   and  true.bin: the captions true of each image
    image_offsets.bin   int64 (n + 1)   and  captions.bin, scores.bin: of each image the false
                        captions of its neighbours, highest score first
    caption_offsets.bin int64 (M + 1)   and  images.bin, image_scores.bin: of each caption the
                        false images it was scored against, highest score first
    images.json, captions.json, meta.json

Where nothing was scored the last two tables are empty.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vlmtune.errors import UserError

CHECKED = 256 * 2**20
"""Files up to this many bytes are checked by sha256 when a cache is opened."""

ARRAYS: dict[str, Any] = {
    "neighbours": np.int32,
    "similarities": np.float32,
    "true_offsets": np.int64,
    "true": np.int32,
    "image_offsets": np.int64,
    "captions": np.int32,
    "scores": np.float32,
    "caption_offsets": np.int64,
    "images": np.int32,
    "image_scores": np.float32,
}


class DamagedCacheError(Exception):
    """Why a folder is not the cache it should be."""


class SimilarityCache:
    """An opened cache, read by memory mapping.

    It travels to worker processes as its path and is mapped again there.

    Args:
        folder: The folder of the cache.
        key: The key it must have; None accepts any.
        check: Compare the files with their checksums.

    Attributes:
        meta: What `meta.json` says.
        image_ids: The images.

    Raises:
        DamagedCacheError: A file is missing, truncated, changed or of another key.
    """

    def __init__(self, folder: Path, key: dict[str, Any] | None = None, check: bool = True) -> None:
        self.folder = Path(folder)
        self.meta = _meta(self.folder, key, check)
        self.image_ids: tuple[str, ...] = _names(self.folder / "images.json")
        self._row = {name: row for row, name in enumerate(self.image_ids)}
        self._arrays = {name: _mapped(self.folder / f"{name}.bin", ARRAYS[name]) for name in ARRAYS}
        self._check_sizes()

    @cached_property
    def captions(self) -> tuple[str, ...]:
        """The captions, sorted; read when they are first asked for."""
        return _names(self.folder / "captions.json")

    @cached_property
    def _column(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.captions)}

    def __contains__(self, image: str) -> bool:
        return image in self._row

    def __len__(self) -> int:
        return len(self.image_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return SimilarityCache, (self.folder, None, False)

    @property
    def scored(self) -> bool:
        """Whether captions were scored, or images only compared."""
        return bool(self.meta["scored"])

    def similar(self, image: str, count: int | None = None) -> list[str]:
        """Returns the images most like `image`, best first, never itself.

        Raises:
            UserError: The image is not in the cache.
        """
        return [self.image_ids[j] for j in self._neighbours(self._at(image))[:count].tolist()]

    def false_captions(self, image: str, count: int | None = None) -> list[tuple[str, float]]:
        """Returns the captions of its neighbours that are false of `image`, highest score first.

        Raises:
            UserError: The image is not in the cache.
        """
        part = self._part("image_offsets", self._at(image))
        names = [self.captions[column] for column in self._arrays["captions"][part][:count]]
        return list(zip(names, self._arrays["scores"][part][:count].tolist(), strict=True))

    def false_images(self, caption: str, count: int | None = None) -> list[tuple[str, float]]:
        """Returns the images `caption` was scored against, all false, highest score first.

        Those are the images among whose neighbours is one that the caption is true of.

        Raises:
            UserError: The caption is not in the cache.
        """
        if caption not in self._column:
            raise UserError(
                f"expected one of the {len(self.captions)} captions in {self.folder}, got "
                f"{caption!r}: build the cache of this corpus"
            )
        part = self._part("caption_offsets", self._column[caption])
        names = [self.image_ids[row] for row in self._arrays["images"][part][:count]]
        return list(zip(names, self._arrays["image_scores"][part][:count].tolist(), strict=True))

    def counterparts(self, image: str, count: int | None = None) -> list[str]:
        """Returns the neighbours of `image` in order of their hardest caption.

        Without scores they are in order of similarity. Neighbours all of whose captions are true of
        `image` are left out: with it they say nothing.

        Raises:
            UserError: The image is not in the cache.
        """
        row = self._at(image)
        neighbours = self._neighbours(row).tolist()
        if not self.scored:
            own = set(self._true(row))
            return [self.image_ids[j] for j in neighbours if set(self._true(j)) - own][:count]
        scored = self._arrays["captions"][self._part("image_offsets", row)].tolist()
        place = {column: i for i, column in enumerate(scored)}
        ranked = []
        for order, j in enumerate(neighbours):
            places = [place[column] for column in self._true(j) if column in place]
            if places:
                ranked.append((min(places), order, j))
        return [self.image_ids[j] for _, _, j in sorted(ranked)[:count]]

    def _neighbours(self, row: int) -> np.ndarray:
        k = self.meta["neighbours"]
        return self._arrays["neighbours"][row * k : (row + 1) * k]

    def _true(self, row: int) -> list[int]:
        return self._arrays["true"][self._part("true_offsets", row)].tolist()

    def _part(self, offsets: str, row: int) -> slice:
        start, stop = self._arrays[offsets][row : row + 2].tolist()
        return slice(start, stop)

    def _at(self, image: str) -> int:
        try:
            return self._row[image]
        except KeyError:
            raise UserError(
                f"expected one of the {len(self)} images in {self.folder}, got {image!r}: "
                "build the cache of this corpus"
            ) from None

    def _check_sizes(self) -> None:
        n, m, arrays = len(self.image_ids), self.meta["captions"], self._arrays
        k = self.meta["neighbours"]
        pairs = int(arrays["image_offsets"][-1])
        expected = {
            "neighbours": n * k,
            "similarities": n * k,
            "true_offsets": n + 1,
            "true": int(arrays["true_offsets"][-1]),
            "image_offsets": n + 1,
            "caption_offsets": m + 1,
            **dict.fromkeys(("captions", "scores", "images", "image_scores"), pairs),
        }
        for name, count in expected.items():
            if len(arrays[name]) != count:
                raise DamagedCacheError(f"{name}.bin has {len(arrays[name])} values, not {count}")


def entry(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file, as `meta.json` has them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def array_file(folder: Path, name: str) -> Path:
    """The file of one of `ARRAYS`."""
    return folder / f"{name}.bin"


def _meta(folder: Path, key: dict[str, Any] | None, check: bool) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        files, found = dict(meta["files"]), dict(meta["key"])
        assert isinstance(meta["neighbours"], int)
        assert isinstance(meta["captions"], int)
        assert isinstance(meta["scored"], bool)
    except OSError as error:
        raise DamagedCacheError(f"meta.json: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DamagedCacheError("meta.json is not that of a similarity cache") from error
    if key is not None and found != key:
        raise DamagedCacheError("it belongs to another key")
    needed: Sequence[str] = [*(f"{name}.bin" for name in ARRAYS), "images.json", "captions.json"]
    for name in needed:
        if reason := _wrong(folder / name, files.get(name), check):
            raise DamagedCacheError(f"{name} {reason}")
    return meta


def _wrong(path: Path, told: Any, check: bool) -> str | None:
    if not isinstance(told, dict):
        return "is not in meta.json"
    try:
        size = path.stat().st_size
        if size != told.get("bytes"):
            return f"has {size} bytes, not {told.get('bytes')}"
        if check and size <= CHECKED and entry(path) != told:
            return "was changed after it was written"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _names(path: Path) -> tuple[str, ...]:
    return tuple(json.loads(path.read_text(encoding="utf-8")))


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)  # whose slices cost less than a memmap's
