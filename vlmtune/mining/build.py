"""Builds the similarity cache: first the similar images, then the scores of their captions.

In: features of images, their captions, and a model's scores. Out: a `SimilarityCache`.
Never: a half-built cache. Each tile of images is a file, so a killed build continues after the last
whole tile.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from vlmtune.errors import UserError
from vlmtune.language.canonical import canonical
from vlmtune.mining.cache import ARRAYS, CacheKey, SimilarityCache
from vlmtune.storage import folder as folders
from vlmtune.storage.files import remove, write_atomically
from vlmtune.storage.folder import DamagedError, FolderWriter
from vlmtune.storage.progress import progress

Score = Callable[[Sequence[str], Sequence[str], Int[Tensor, "P 2"]], Float[Tensor, "P"]]
"""Scores pairs (row of the image ids, row of the captions); higher is a better fit."""

Tile = dict[str, np.ndarray]
PARTS = ("neighbours", "counts", "false")
COLUMNS = 2**15
"""Images compared with a tile at a time."""


def open_or_build_cache(
    root: Path,
    key: CacheKey,
    captions: Mapping[str, Sequence[str]],
    features: Callable[[], Float[Tensor, "n d"]],
    score: Score | None = None,
    contents: Mapping[str, str] | None = None,
) -> SimilarityCache:
    """Opens the cache of `key` under `root`, after building it if it is missing or damaged.

    Args:
        root: Folder of caches; made if needed.
        key: The key.
        captions: By image id the captions known to be true of the n images.
        features: Gives the images' features, in the order of `captions`; called only to build.
        score: Scores an image against captions of its neighbours; None to compare images alone.
        contents: The digest of each image's content: images of one content are not neighbours of
            each other. None if all differ.

    Raises:
        UserError: There are fewer than two images to compare, features or scores are not finite, or
            the disk cannot be written.

    Example:
        >>> import tempfile
        >>> captions = {"cat": ["a cat"], "dog": ["a dog"], "car": ["a car"]}
        >>> x = torch.tensor([[1.0, 0.2], [1.0, 0.3], [0.0, 1.0]])
        >>> with tempfile.TemporaryDirectory() as root:
        ...     key = CacheKey("backbone", "", "corpus", neighbours=1)
        ...     open_or_build_cache(Path(root), key, captions, lambda: x).similar("cat")
        ['dog']
    """
    path = Path(root) / key.folder
    builder = _Builder(path, key, captions, features, score, contents)

    def opened() -> SimilarityCache:
        cache = SimilarityCache(path, key)
        if [*cache.image_ids] != [*captions]:  # an image may have been unreadable before
            raise DamagedError("it is of other images")
        return cache

    cache = folders.open_or_build(path, "similarity cache", opened, builder.write)
    remove(builder.tiles)
    return cache


class _Builder:
    """One build, from the tiles of an earlier one to its end."""

    def __init__(
        self,
        path: Path,
        key: CacheKey,
        captions: Mapping[str, Sequence[str]],
        features: Callable[[], Tensor],
        score: Score | None,
        contents: Mapping[str, str] | None,
    ) -> None:
        self.path = path
        self.key = key
        self.features = features
        self.score = score
        self.images = list(captions)
        distinct = set(chain.from_iterable(captions.values()))
        self.texts = sorted(distinct)
        # Captions of the same words are one, so that none is false beside its other spelling.
        first: dict[str, int] = {}
        column = {}
        for number, text in enumerate(self.texts):
            column[text] = first.setdefault(canonical(text), number)
        self.true = []  # of each image the columns of its captions, ascending
        for texts in captions.values():
            columns = sorted({column[text] for text in texts})
            self.true.append(np.array(columns, dtype=np.int32))
        same = self.images
        if contents is not None:
            same = [contents[image] for image in self.images]
        numbers = {content: number for number, content in enumerate(dict.fromkeys(same))}
        self.contents = torch.tensor([numbers[content] for content in same])
        most_copies = max(Counter(same).values(), default=1)
        others = len(self.images) - most_copies
        if others < 1:
            raise UserError(
                f"expected at least 2 images to compare, got {len(numbers)}: check the shards"
            )
        self.k = min(key.neighbours, others)
        # Tiles hold numbers of images and captions, so they belong to exactly these.
        true = [columns.tolist() for columns in self.true]
        names = folders.digest([self.images, self.texts, true, self.contents.tolist()])
        self.tiles = path.with_name(f".{path.name}.{names[:16]}.tiles")

    def write(self, writer: FolderWriter) -> None:
        for leftover in self.path.parent.glob(f".{self.path.name}.*.tiles"):  # of other images
            if leftover != self.tiles:
                remove(leftover)
        self.tiles.mkdir(exist_ok=True)
        self._write_tiles(writer)
        # Rows of different lengths, one after another, with the offset of each.
        true_counts = np.array(list(map(len, self.true)))
        _append(writer, "true_offsets", _offsets(true_counts))
        _append(writer, "true", np.concatenate(self.true))
        images = json.dumps(self.images)
        captions = json.dumps(self.texts)
        writer.append("images.json", images.encode())
        writer.append("captions.json", captions.encode())
        writer.finish(
            self.key.to_dict(),
            digest=self.key.digest,
            neighbours=self.k,
            scored=self.score is not None,
        )

    def _write_tiles(self, writer: FolderWriter) -> None:
        n = len(self.images)
        size = self.key.tile
        # A tile at a time on disk: what a killed build finished is not computed again.
        counts = []
        with progress("finding neighbours", n) as advance:
            for start in range(0, n, size):
                rows = range(start, min(start + size, n))
                tile = self._read(rows)
                if tile is None:
                    tile = self._compute(rows)
                    self._save(rows, tile)
                counts.append(tile["counts"])
                _append(writer, "neighbours", tile["neighbours"])
                _append(writer, "false", tile["false"])
                advance(len(rows))
        _append(writer, "false_offsets", _offsets(np.concatenate(counts)))

    @cached_property
    def _bank(self) -> Tensor:
        # No features are needed where every tile was written before.
        features = self.features().float()
        bank = normalize(features, dim=1)
        assert len(bank) == len(self.images), "features in the order of the captions"
        _check_finite(bank, "features of images")
        return bank

    def _compute(self, rows: range) -> Tile:
        numbers, _ = nearest(self._bank, rows, self.k, contents=self.contents)
        neighbours = numbers.cpu().numpy()
        counts = np.zeros(len(rows), dtype=np.int64)
        columns = np.empty(0, dtype=np.int32)
        if self.score is not None:
            false = list(map(self._false, rows, neighbours))
            counts = np.array(list(map(len, false)), dtype=np.int64)
            columns = np.concatenate(false)
            # Image and column of each pair to score, images one after another.
            images = np.repeat(np.arange(len(rows)), counts)
            scores = self._scores(rows, images, columns)
            # By image, then the highest score first; of equal scores the lower column.
            order = np.lexsort((columns, -scores, images))
            columns = columns[order]
        return {
            "neighbours": neighbours.astype(np.int32),
            "counts": counts,
            "false": columns,
        }

    def _false(self, row: int, neighbours: np.ndarray) -> np.ndarray:
        """Returns the captions of neighbours that are not known to be true, each once."""
        true = [self.true[j] for j in neighbours]
        captions = np.concatenate(true)
        return np.setdiff1d(captions, self.true[row])

    def _scores(self, rows: range, i: np.ndarray, columns: np.ndarray) -> np.ndarray:
        assert self.score is not None
        if not len(columns):
            return np.empty(0, dtype=np.float32)
        # Each caption is encoded once, however many images of the tile have it.
        used, position = np.unique(columns, return_inverse=True)
        captions = [self.texts[column] for column in used]
        images = self.images[rows.start : rows.stop]
        pairs = np.stack([i, position.reshape(-1)], axis=1)
        scores = self.score(images, captions, torch.from_numpy(pairs))
        _check_finite(scores, "scores of captions")
        return scores.detach().float().cpu().numpy()

    def _save(self, rows: range, tile: Tile) -> None:
        with write_atomically(self._path(rows)) as temporary, temporary.open("wb") as file:
            np.savez(file, **tile)  # pyright: ignore[reportArgumentType]

    def _read(self, rows: range) -> Tile | None:
        """Returns a finished tile, or None if it is missing or damaged."""
        try:
            # Opened here: numpy leaves a file open that is not an archive.
            with self._path(rows).open("rb") as file:
                arrays = np.load(file, allow_pickle=False)
                tile = {name: arrays[name] for name in PARTS}  # zip checks each by its CRC
        except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile):
            return None
        # A whole archive may still hold other shapes than this tile has.
        pairs = int(tile["counts"].sum())
        expected = {
            "neighbours": (len(rows), self.k),
            "counts": (len(rows),),
            "false": (pairs,),
        }
        shapes = {name: tile[name].shape for name in PARTS}
        return tile if shapes == expected else None

    def _path(self, rows: range) -> Path:
        number = rows.start // self.key.tile
        return self.tiles / f"{number:06d}.npz"


def _check_finite(values: Tensor, what: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise UserError(f"expected finite {what}, got NaN or infinity: check the model's weights")


def nearest(
    bank: Float[Tensor, "n d"],
    rows: range,
    k: int,
    columns: int = COLUMNS,
    contents: Int[Tensor, "n"] | None = None,
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k"]]:
    r"""Finds the k other rows of a bank with the highest cosine to each of `rows`, exactly.

    $\cos_{ij} = x_i \cdot x_j$ for normalised x. Returns rows, best first, and their cosines; of
    equal cosines the lower row comes first. Rows with one number in `contents` are one image, of
    which none is a neighbour of another. At most b x (k + `columns`) cosines are in memory.

    Example:
        >>> nearest(torch.eye(3), range(1), 2)[0]
        tensor([[1, 2]])
    """
    queries = bank[rows.start : rows.stop].float()
    all_numbers = torch.arange(len(bank), device=bank.device)
    content = all_numbers if contents is None else contents.to(bank.device)
    query_content = content[rows.start : rows.stop, None]
    # The best so far of each query: none at first.
    cosines = queries.new_empty(len(rows), 0)
    numbers = all_numbers.new_empty(len(rows), 0)
    for start in range(0, len(bank), columns):
        stop = start + columns
        part = bank[start:stop].float()
        similar = queries @ part.T
        # No image is its own neighbour.
        itself = content[start:stop] == query_content
        similar = similar.masked_fill_(itself, -torch.inf)
        # The best of before stand to the left: of equal cosines the lower number stays.
        kept = numbers.shape[1]
        cosines = torch.cat([cosines, similar], dim=1)
        count = min(k, cosines.shape[1])
        best = _highest(cosines, count)
        cosines = cosines.gather(1, best)
        # A column of this part is the number of an image already, but for where the part begins.
        number = best + (start - kept)
        if kept:
            known = numbers.gather(1, best.clamp(max=kept - 1))
            number = torch.where(best < kept, known, number)
        numbers = number
    return numbers, cosines


def _highest(values: Float[Tensor, "b c"], k: int) -> Int[Tensor, "b k"]:
    """Returns the positions of the k highest values of each row; of equal values the first."""
    more = min(k + 1, values.shape[1])
    top, positions = values.topk(more, dim=1)
    lowest = top[:, k - 1 : k]
    if more > k and bool((top[:, k:] < lowest).all()):
        positions = positions[:, :k].sort(dim=1).values
    else:
        # Of equal values topk picks any, so it only tells the lowest value that is chosen.
        above = values > lowest
        equal = values == lowest
        # The first of the values equal to the lowest fill what is left of k.
        left = k - above.sum(dim=1, keepdim=True)
        first = equal & (equal.cumsum(dim=1) <= left)
        chosen = above | first
        _, columns = chosen.nonzero(as_tuple=True)
        positions = columns.view(len(values), k)
    # Positions ascend, and a stable sort keeps that among equal values.
    chosen_values = values.gather(1, positions)
    order = chosen_values.argsort(dim=1, descending=True, stable=True)
    return positions.gather(1, order)


def _append(writer: FolderWriter, name: str, values: np.ndarray) -> None:
    array = np.ascontiguousarray(values, dtype=ARRAYS[name])
    writer.append(f"{name}.bin", array.tobytes())


def _offsets(counts: np.ndarray) -> np.ndarray:
    ends = np.cumsum(counts)
    return np.concatenate([[0], ends])
