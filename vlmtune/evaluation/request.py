"""What is asked to be scored: each image, each text and each pair of them once."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.evaluation.encoding import Picture


@dataclass(frozen=True)
class Block:
    """The pairs of a few images.

    Attributes:
        columns: Positions of the texts they need.
        needed: Which of them each image needs.
        places: Row and column of each pair, or None where all are needed.
    """

    columns: Int[Tensor, "c"]
    needed: Bool[Tensor, "r c"]
    places: tuple[Int[Tensor, "q"], Int[Tensor, "q"]] | None

    def of(self, values: Float[Tensor, "r c"]) -> Float[Tensor, "q"] | Float[Tensor, "r c"]:
        """Takes the scores of the needed pairs out of those of the block."""
        return values if self.places is None else values[self.places]


@dataclass(frozen=True)
class Request:
    """N distinct images, M distinct texts and Q distinct pairs of them, or all N x M.

    Attributes:
        images: Images by the digest of their content.
        texts: Captions.
        pairs: Sorted by image, then by text; None for all.
        where: For each pair that was asked for its place in `pairs`; without pairs, for each image
            and for each text its place here.
    """

    images: dict[str, Picture]
    texts: list[str]
    pairs: Int[Tensor, "Q 2"] | None
    where: tuple[Tensor, ...]

    def place(self, scores: Tensor) -> Tensor:
        """Brings scores into the order that was asked for, with repetitions."""
        if self.pairs is not None:
            return scores[self.where]
        rows, columns = self.where
        if (len(rows), len(columns)) == tuple(scores.shape):
            return scores  # distinct in the first place
        return scores[rows][:, columns]

    def rows(self, rank: int, ranks: int) -> range:
        """The images of one rank: consecutive ones, with about as many pairs as any other's."""
        starts = self._starts
        even = starts[-1] * torch.arange(ranks + 1) / ranks
        cuts = (starts[:, None] - even).abs().argmin(dim=0)
        return range(int(cuts[rank]), int(cuts[rank + 1]))

    def count(self, rows: range) -> int:
        """How many pairs the images of `rows` have."""
        starts = self._starts
        return int(starts[rows.stop] - starts[rows.start])

    def columns(self, rows: range) -> Int[Tensor, "c"]:
        """The texts that the images of `rows` need."""
        if self.pairs is None:
            return torch.arange(len(self.texts))
        return self._of(self.pairs, rows)[:, 1].unique()

    def block(self, rows: range) -> Block:
        """The pairs of the images of `rows`."""
        if self.pairs is None:
            columns = torch.arange(len(self.texts))
            return Block(columns, torch.ones(len(rows), len(columns), dtype=torch.bool), None)
        mine = self._of(self.pairs, rows)
        columns, j = mine[:, 1].unique(return_inverse=True)
        places = (mine[:, 0] - rows.start, j)
        needed = torch.zeros(len(rows), len(columns), dtype=torch.bool)
        needed[places] = True
        return Block(columns, needed, places)

    def _of(self, pairs: Int[Tensor, "Q 2"], rows: range) -> Int[Tensor, "q 2"]:
        return pairs[int(self._starts[rows.start]) : int(self._starts[rows.stop])]

    @functools.cached_property
    def _starts(self) -> Int[Tensor, "N1"]:
        """How many pairs come before those of each image, and how many there are."""
        n = len(self.images)
        if self.pairs is None:
            return torch.arange(n + 1) * len(self.texts)
        return torch.nn.functional.pad(self.pairs[:, 0].bincount(minlength=n).cumsum(0), (1, 0))


def requested(
    images: Sequence[Picture],
    texts: Sequence[str],
    pairs: Int[Tensor, "P 2"] | None,
    digests: Callable[[Sequence[Picture]], list[str]],
) -> Request:
    """Finds out what is to be done for a call; images and texts of no pair are left out.

    Args:
        images: Files or pictures, perhaps repeated.
        texts: Captions, perhaps repeated.
        pairs: Rows of `images` and `texts`; None for all.
        digests: Gives images names by their content.

    Raises:
        ValueError: A pair names no image or no text.
    """
    if pairs is None:
        ids = digests(images)
        names, rows = _distinct(ids)
        captions, columns = _distinct(texts)
        by_name = dict(zip(ids, images, strict=True))
        return Request({name: by_name[name] for name in names}, captions, None, (rows, columns))
    pairs = pairs.cpu()
    shape = torch.tensor([len(images), len(texts)])
    if bool(((pairs < 0) | (pairs >= shape)).any()):
        raise ValueError(f"expected pairs within {tuple(shape.tolist())}, got others")
    used, i = pairs[:, 0].unique(return_inverse=True)
    some = [images[k] for k in used.tolist()]
    ids = digests(some)
    names, rows = _distinct(ids)
    used, j = pairs[:, 1].unique(return_inverse=True)
    captions, columns = _distinct([str(texts[k]) for k in used.tolist()])
    width = max(1, len(captions))
    numbers, where = (rows[i] * width + columns[j]).unique(return_inverse=True)
    distinct = torch.stack([numbers // width, numbers % width], dim=1)
    by_name = dict(zip(ids, some, strict=True))
    return Request({name: by_name[name] for name in names}, captions, distinct, (where,))


def _distinct(ids: Sequence[str]) -> tuple[list[str], Int[Tensor, "n"]]:
    """Returns each id once, in order of first occurrence, and the position of every id there."""
    position: dict[str, int] = {}
    where = [position.setdefault(name, len(position)) for name in ids]
    return list(position), torch.tensor(where, dtype=torch.int64)
