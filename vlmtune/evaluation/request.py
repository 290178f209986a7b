"""One call of the scorer as work: each image, each text and each pair once.

In: images, texts and pairs, perhaps repeated. Out: what to score, and the order to return it in.
Never: a score.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.benchmarks.items import distinct_pairs, numbered
from vlmtune.features.pictures import Picture


@dataclass(frozen=True)
class PairTile:
    """The pairs of a few images.

    Attributes:
        columns: Positions of their texts in the request.
        mask: True where an image and a text are a pair.
        positions: Row and column of each pair in the tile; None if all are pairs.
    """

    columns: Int[Tensor, "c"]
    mask: Bool[Tensor, "r c"]
    positions: tuple[Int[Tensor, "q"], Int[Tensor, "q"]] | None

    def select(self, values: Float[Tensor, "r c"]) -> Float[Tensor, "q"] | Float[Tensor, "r c"]:
        """Returns the scores of the pairs."""
        return values if self.positions is None else values[self.positions]


@dataclass(frozen=True)
class Request:
    """N distinct images, M distinct texts and Q distinct pairs of them, or all N x M.

    Attributes:
        images: Images by the digest of their content.
        texts: Captions, in order of first occurrence.
        pairs: Sorted by image, then by text; None for all.
        order: For each pair of the call its position in `pairs`; without pairs, for each image
            and each text of the call its position here.
    """

    images: dict[str, Picture]
    texts: tuple[str, ...]
    pairs: Int[Tensor, "Q 2"] | None
    order: tuple[Tensor, ...]

    def restore(self, scores: Tensor) -> Tensor:
        """Returns scores in the order of the call, with its repetitions."""
        if self.pairs is not None:
            return scores[self.order]
        rows, columns = self.order
        if (len(rows), len(columns)) == tuple(scores.shape):
            return scores  # nothing was repeated
        return scores[rows][:, columns]

    def rows(self, rank: int, ranks: int) -> range:
        """Returns the images of one rank: consecutive, with about as many pairs as other ranks."""
        starts = self._starts
        total = starts[-1]
        # Pairs take the time of a joint adapter, so ranks share pairs and not images.
        even_cuts = total * torch.arange(ranks + 1) / ranks
        # A cut lies between two images: the start of an image that is nearest to the even cut.
        distances = (starts[:, None] - even_cuts).abs()
        cuts = distances.argmin(dim=0)
        return range(int(cuts[rank]), int(cuts[rank + 1]))

    def count(self, rows: range) -> int:
        """Returns the number of pairs of the images in `rows`."""
        starts = self._starts
        return int(starts[rows.stop] - starts[rows.start])

    def columns(self, rows: range) -> Int[Tensor, "c"]:
        """Returns the texts that the images in `rows` are paired with."""
        if self.pairs is None:
            return torch.arange(len(self.texts))
        pairs = self._pairs_of(self.pairs, rows)
        return pairs[:, 1].unique()

    def tile(self, rows: range) -> PairTile:
        """Returns the pairs of the images in `rows`."""
        if self.pairs is None:
            columns = torch.arange(len(self.texts))
            every_pair = torch.ones(len(rows), len(columns), dtype=torch.bool)
            return PairTile(columns, every_pair, None)
        pairs = self._pairs_of(self.pairs, rows)
        images, texts = pairs.unbind(dim=1)
        # A tile has a column for each text that some image of it is paired with, and no other.
        columns, tile_columns = texts.unique(return_inverse=True)
        tile_rows = images - rows.start
        positions = (tile_rows, tile_columns)
        mask = torch.zeros(len(rows), len(columns), dtype=torch.bool)
        mask[positions] = True
        return PairTile(columns, mask, positions)

    def _pairs_of(self, pairs: Int[Tensor, "Q 2"], rows: range) -> Int[Tensor, "q 2"]:
        start, stop = self._starts[[rows.start, rows.stop]].tolist()
        return pairs[start:stop]

    @functools.cached_property
    def _starts(self) -> Int[Tensor, "N1"]:
        """How many pairs precede those of each image, and their total."""
        image_count = len(self.images)
        if self.pairs is None:
            return torch.arange(image_count + 1) * len(self.texts)
        counts = self.pairs[:, 0].bincount(minlength=image_count)
        ends = counts.cumsum(0)
        # The first image starts at 0, the others where the one before ends.
        return torch.nn.functional.pad(ends, (1, 0))


def make_request(
    images: Sequence[Picture],
    texts: Sequence[str],
    pairs: Int[Tensor, "P 2"] | None,
    digests: Callable[[Sequence[Picture]], list[str]],
) -> Request:
    """Finds the distinct work of a call; leaves out images and texts that are in no pair.

    Raises:
        ValueError: A pair is out of range.
    """
    if pairs is None:
        by_digest, rows = _distinct_images(images, digests)
        captions, columns = numbered(texts)
        return Request(by_digest, captions, None, (rows, columns))
    pairs = pairs.cpu()
    # A negative number would count from the end, and give the score of another pair.
    shape = torch.tensor([len(images), len(texts)])
    outside = (pairs < 0) | (pairs >= shape)
    if bool(outside.any()):
        raise ValueError(f"expected pairs within {tuple(shape.tolist())}, got others")

    # First only what is in a pair, then each image and each text of these once.
    image_numbers, image_of_pair = pairs[:, 0].unique(return_inverse=True)
    paired_images = [images[number] for number in image_numbers.tolist()]
    by_digest, rows = _distinct_images(paired_images, digests)
    text_numbers, text_of_pair = pairs[:, 1].unique(return_inverse=True)
    paired_texts = [str(texts[number]) for number in text_numbers.tolist()]
    captions, columns = numbered(paired_texts)
    distinct, order = distinct_pairs(rows[image_of_pair], columns[text_of_pair])
    return Request(by_digest, captions, distinct, (order,))


def _distinct_images(
    images: Sequence[Picture], digests: Callable[[Sequence[Picture]], list[str]]
) -> tuple[dict[str, Picture], Int[Tensor, "n"]]:
    """Returns each image once by its digest, and the position of every image there."""
    ids = digests(images)
    _, order = numbered(ids)
    # A repeated key keeps its position and gets the last image, which has the same content.
    by_digest = dict(zip(ids, images, strict=True))
    return by_digest, order
