"""The similarity cache: for each image its most similar images, and their captions by hardness.

In: the folder of a cache. Out: neighbours of an image, and the hardest of them.
Never: a computation of features or scores (see `build`).

A cache is a folder with the n images, their captions and

    neighbours.bin      int32 (n, k), images in order of falling similarity
    true_offsets.bin    int64 (n + 1)   and  true.bin: the captions true of each image
    false_offsets.bin   int64 (n + 1)   and  false.bin: for each image the false captions of its
                        neighbours, highest score first; empty if nothing was scored
    images.json, captions.json, meta.json
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import StrictBool
from typing_extensions import TypedDict

from vlmtune.data.rgb import DECODING
from vlmtune.storage import folder as folders
from vlmtune.storage.files import Count
from vlmtune.storage.names import Names

ARRAYS: dict[str, Any] = {
    "neighbours": np.int32,
    "true_offsets": np.int64,
    "true": np.int32,
    "false_offsets": np.int64,
    "false": np.int32,
}
FILES = (*(f"{name}.bin" for name in ARRAYS), "images.json", "captions.json")


class _Facts(TypedDict):
    """What `meta.json` says: the similar images of an image, and whether captions were scored."""

    neighbours: Count
    scored: StrictBool


@dataclass(frozen=True)
class CacheKey:
    """What a cache depends on; another key is another cache.

    Attributes:
        backbone: Fingerprint of the backbone whose image features are compared.
        scorer: Digest of the adapter (its spec and weights) that scores captions; "" for none.
        source: Digest of the corpus.
        neighbours: k, the most similar images of each image; EqSim has 128.
        tile: Images compared at a time.

    Example:
        >>> CacheKey("f00d", "", "cafe").folder
        'neighbours-128-fe7bc9a6d1251b7d'
    """

    backbone: str
    scorer: str
    source: str
    neighbours: int = 128
    tile: int = 32

    def to_dict(self) -> dict[str, Any]:
        """Returns the key as JSON values, with how images become pixels."""
        facts = asdict(self)
        facts["decoding"] = DECODING
        facts["version"] = folders.VERSION
        facts["copies"] = "one image"  # they were neighbours of each other before
        facts["captions"] = "by words"  # in another spelling they were false before
        return facts

    @property
    def digest(self) -> str:
        """Hex digest of the key."""
        return folders.digest(self.to_dict())

    @property
    def folder(self) -> str:
        """Name of the cache's folder."""
        return f"neighbours-{self.neighbours}-{self.digest[:16]}"


class SimilarityCache:
    """An opened cache, read by memory mapping.

    It travels to worker processes as its path and is mapped again there.

    Args:
        folder: The folder of the cache.
        key: The key it must have; None accepts any.

    Attributes:
        meta: The content of `meta.json`.
        image_ids: The images.

    Raises:
        DamagedError: A file is missing, truncated, changed or of another key.
    """

    def __init__(self, folder: Path, key: CacheKey | None = None) -> None:
        self.folder = Path(folder)
        expected = None if key is None else key.to_dict()
        self.meta = folders.read_meta(self.folder, expected, FILES, _Facts)
        image_ids = folders.read_names(self.folder, "images.json")
        self.image_ids = Names(image_ids)
        # Mapped, not read: the lists of a large corpus exceed the memory of a worker.
        self._arrays: dict[str, np.ndarray] = {}
        for name, dtype in ARRAYS.items():
            path = self.folder / f"{name}.bin"
            self._arrays[name] = _mapped(path, dtype)

    @cached_property
    def captions(self) -> tuple[str, ...]:
        """The captions, sorted."""
        return folders.read_names(self.folder, "captions.json")

    def __len__(self) -> int:
        return len(self.image_ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return SimilarityCache, (self.folder,)

    @property
    def scored(self) -> bool:
        """Whether captions were scored; otherwise images were only compared."""
        return bool(self.meta["scored"])

    def similar(self, image: str, count: int | None = None) -> list[str]:
        """Returns the images most like `image`, best first, without `image`."""
        rows = self._neighbours(self._at(image))
        return [self.image_ids[row] for row in rows[:count]]

    def false_captions(self, image: str, count: int | None = None) -> list[str]:
        """Returns the captions of its neighbours that are false of `image`, highest score first."""
        columns = self._part("false", self._at(image))
        return [self.captions[column] for column in columns[:count]]

    def counterpart_rows(self, row: int) -> list[int]:
        """Returns the neighbours of the image `image_ids[row]` by their hardest caption, as rows.

        Without scores they are in order of similarity. Neighbours whose captions are all true of
        the image are left out: they add no negative.
        """
        neighbours = self._neighbours(row)
        if not self.scored:
            true = set(self._part("true", row))
            return [j for j in neighbours if not true.issuperset(self._part("true", j))]
        # The false captions are sorted by their score, so a rank is a position.
        false = self._part("false", row)
        rank_of = {column: rank for rank, column in enumerate(false)}
        hardest = {}
        for j in neighbours:
            # A neighbour is as hard as the hardest of its captions that is false of the image.
            ranks = [rank_of[column] for column in self._part("true", j) if column in rank_of]
            if ranks:
                hardest[j] = min(ranks)
        # Sorting is stable: of equal ranks the more similar neighbour comes first.
        return sorted(hardest, key=hardest.__getitem__)

    def _neighbours(self, row: int) -> list[int]:
        k = self.meta["neighbours"]
        start = row * k
        return self._arrays["neighbours"][start : start + k].tolist()

    def _part(self, name: str, row: int) -> list[int]:
        offsets = self._arrays[f"{name}_offsets"]
        start, stop = offsets[row : row + 2].tolist()
        return self._arrays[name][start:stop].tolist()

    def _at(self, image: str) -> int:
        row = self.image_ids.find(image)
        assert row is not None, "an image of this cache"
        return row


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, "r").view(np.ndarray)  # whose slices cost less than a memmap's
