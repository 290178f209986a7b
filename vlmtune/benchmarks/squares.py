"""What all 2 x 2 benchmarks share: two images, two captions, caption i true of image i."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention, check_images, distinct_pairs
from vlmtune.benchmarks.repeats import Item
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, connected_components
from vlmtune.metrics.intervals import wilson_proportion
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.paired_accuracy import (
    GROUP_CHANCE,
    IMAGE_CHANCE,
    TEXT_CHANCE,
    equivariance_deviations,
    image_correct,
    text_correct,
)
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

SHOWN = 4  # captions of each kind, right and wrong, in the gallery
SEARCHED = 1000  # captions of each kind that are looked at for distinct ones
T = TypeVar("T")
CHANCES = (TEXT_CHANCE, IMAGE_CHANCE, GROUP_CHANCE)


@dataclass(frozen=True)
class Square:
    """One item: `texts[i]` is true of `images[i]` and of no other.

    Attributes:
        images: The two images.
        texts: The two captions.
        group: The part of the benchmark it belongs to; "" where there are none.
        tags: Further names under which its accuracy is reported.
    """

    images: tuple[ImageRef, ImageRef]
    texts: tuple[str, str]
    group: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wins:
    """Which of n items are right, by each of the three rules."""

    text: Bool[Tensor, "n"]
    image: Bool[Tensor, "n"]

    @property
    def group(self) -> Bool[Tensor, "n"]:
        """Right by both rules."""
        return self.text & self.image

    def of(self, items: Bool[Tensor, "n"]) -> "Wins":
        """Returns those of the chosen items."""
        return Wins(self.text[items], self.image[items])


@dataclass(frozen=True)
class _Items:
    """The distinct images, captions and pairs; of each item its four places among the pairs."""

    squares: tuple[Square, ...]
    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    clusters: Int[Tensor, "n"]
    pairs: Int[Tensor, "P 2"]
    places: Int[Tensor, "n 2 2"]


class Squares(Benchmark, ABC):
    """A benchmark of 2 x 2 items, scored as Winoground is.

    An item's text score is 1 where each image prefers its caption, its image score where each
    caption prefers its image, its group score where both hold; a tie is never a win. Random scores
    reach 1/4, 1/4 and 1/6. `series` holds each item's deviation from equivariance on the text and
    on the image side (`equivariance_deviations` of the metrics) and, as `mean_scores`, the mean
    2 x 2 matrix: image 0 with caption 0 and 1, image 1 with caption 0 and 1.

    A subclass reads its files in `_read`. It may set `primary` to another of `keys`, report
    averages over groups in `_averages`, and state how a published script breaks ties in
    `_reference_wins`.

    Args:
        name: Name in reports, unique within a run.
        convention: "strict", or "reference" for the published script's treatment of ties.
        limit: Evaluate at most so many items; of each group where `limit_per_group` is True.
        seed: Draw them at random with this seed; None takes the first ones. The order is kept.

    Attributes:
        keys: Names of text, image and group accuracy.
        limit_per_group: Whether `limit` counts within each group.
        twins_differ: Whether an item with the same image or caption twice is an error. Where it is
            not, such an item is counted, and never won.

    Raises:
        UserError: `limit` is below 1, or the convention is unknown.
    """

    version: ClassVar[str] = "1"
    primary: str = "group_accuracy"
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "image_accuracy", "group_accuracy")
    limit_per_group: ClassVar[bool] = False
    twins_differ: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        if convention not in ("strict", "reference"):
            raise UserError(
                f"expected the convention 'strict' or 'reference', got {convention!r}: name one"
            )
        check_limit(limit)
        self.name = name
        self.convention: Convention = convention
        self.limit = limit
        self.seed = seed
        self._items: _Items | None = None

    @abstractmethod
    def _read(self) -> Sequence[Square]:
        """Reads the annotation files: all items, in the order of the file."""

    def _reference_wins(self, scores: Float[Tensor, "n 2 2"]) -> Wins:
        """Which items the published script counts as right; strict unless a subclass differs."""
        return _strict_wins(scores)

    def _averages(
        self, wins: Wins, groups: Sequence[str], clusters: Int[Tensor, "n"]
    ) -> dict[str, MetricValue]:
        """Averages the source defines over groups.

        Args:
            wins: Which items are right.
            groups: The group of each item.
            clusters: Of each item the number of its images' cluster.
        """
        return {}

    def _outcomes(self, wins: Wins) -> Float[Tensor, "n"]:
        """What the primary metric gives each item; to override where it is none of `keys`."""
        by_key = dict(zip(self.keys, (wins.text, wins.image, wins.group), strict=True))
        return by_key[self.primary].double()

    def _weighed(self, groups: Sequence[str]) -> ItemGroups | None:
        """The groups the primary metric is a mean over; None where it is one over items."""
        return None

    def load(self) -> None:
        """Reads the files and finds the images; calling it again does nothing.

        Raises:
            UserError: A file is not what it should be or holds no item, or an image is missing.
        """
        if self._items is not None:
            return
        read = self._read()
        groups = [square.group if self.limit_per_group else "" for square in read]
        squares = tuple(read[i] for i in sample(groups, self.limit, self.seed))
        if not squares:
            raise UserError(f"expected items in the files of {self.name}, got none{_at(self)}")
        if self.twins_differ:
            _check_twins(squares, self.name)
        items = _items(squares)
        check_images(items.images, self)
        self._items = items

    def images(self) -> tuple[ImageRef, ...]:
        """The distinct images, in order of first appearance."""
        return self._loaded().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions, in order of first appearance."""
        return self._loaded().texts

    def pairs(self) -> Int[Tensor, "P 2"]:
        """The distinct ones of the four pairs of each item, image by image."""
        return self._loaded().pairs

    def truth(self) -> Bool[Tensor, "P"]:
        """Caption i of an item is true of image i."""
        items = self._loaded()
        truth = torch.zeros(len(items.pairs), dtype=torch.bool)
        truth[items.places.diagonal(dim1=1, dim2=2)] = True
        return truth

    def compared_items(self) -> tuple[Item, ...]:
        """The 2 x 2 items."""
        return tuple(Item(square.images, square.texts) for square in self._loaded().squares)

    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        """Counts the items that are right, over all and in each group."""
        items = self._loaded()
        values = scores.detach().cpu().double()[items.places]
        strict = self.convention == "strict"
        wins = _strict_wins(values) if strict else self._reference_wins(values)
        groups = [square.group for square in items.squares]
        metrics = self._accuracies(wins, items.clusters)
        metrics |= self._averages(wins, groups, items.clusters)
        for name, own in _members(items.squares).items():
            metrics |= self._accuracies(wins.of(own), items.clusters[own], f"/{name}")
        weighed = self._weighed(groups)
        weights = None if weighed is None else weighed.weights
        deviations = equivariance_deviations(values)
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=self._examples(values),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(self._outcomes(wins).tolist()),
            clusters=tuple(items.clusters.tolist()),
            groups=() if weighed is None else tuple(weighed.members.tolist()),
            group_weights=() if weights is None else tuple(weights.tolist()),
            series={
                "equivariance_text": tuple(deviations[:, 0].tolist()),
                "equivariance_image": tuple(deviations[:, 1].tolist()),
                "mean_scores": tuple(values.mean(dim=0).flatten().tolist()),
            },
        )

    def _accuracies(
        self, wins: Wins, clusters: Int[Tensor, "n"], suffix: str = ""
    ) -> dict[str, MetricValue]:
        return {
            key + suffix: _rate(kind, clusters, chance)
            for key, kind, chance in zip(
                self.keys, (wins.text, wins.image, wins.group), CHANCES, strict=True
            )
        }

    def _examples(self, values: Float[Tensor, "n 2 2"]) -> tuple[Example, ...]:
        """The first right and the first wrong captions, the better scored image first."""
        own = values.diagonal(dim1=1, dim2=2)
        other = values.flip(1).diagonal(dim1=1, dim2=2)
        squares = self._loaded().squares
        shown: list[Example] = []
        for correct in (True, False):
            places = ((own > other) == correct).nonzero()[:SEARCHED].tolist()
            first = {squares[item].texts[side]: (item, side) for item, side in reversed(places)}
            kept = sorted(first.values())[:SHOWN]
            shown += [_example(squares[i], values[i], side, correct) for i, side in kept]
        return tuple(shown)

    def _loaded(self) -> _Items:
        self.load()
        assert self._items is not None
        return self._items


def _strict_wins(scores: Float[Tensor, "n 2 2"]) -> Wins:
    return Wins(text_correct(scores), image_correct(scores))


def _rate(wins: Bool[Tensor, "n"], clusters: Int[Tensor, "n"], chance: float) -> MetricValue:
    """The share of wins, with Wilson's interval; wider where items share images."""
    if len(clusters.unique()) == len(clusters):
        return wilson_proportion(wins, chance)
    return cluster_robust_mean(wins.double(), clusters, chance)


def _items(squares: tuple[Square, ...]) -> _Items:
    """Numbers the distinct images, captions and pairs."""
    row_of = _numbered(image for square in squares for image in square.images)
    column_of = _numbered(text for square in squares for text in square.texts)
    rows = torch.tensor([[row_of[image] for image in square.images] for square in squares])
    columns = torch.tensor([[column_of[text] for text in square.texts] for square in squares])
    pairs, places = distinct_pairs(
        rows[:, :, None].expand(-1, 2, 2), columns[:, None, :].expand(-1, 2, 2)
    )
    # Crops of one file are not independent either.
    file_of = _numbered(image.path for image in row_of)
    files = torch.tensor([file_of[image.path] for image in row_of])
    return _Items(
        squares, tuple(row_of), tuple(column_of), connected_components(files[rows]), pairs, places
    )


def _numbered(values: Iterable[T]) -> dict[T, int]:
    return {value: i for i, value in enumerate(dict.fromkeys(values))}


def _members(squares: Sequence[Square]) -> dict[str, Bool[Tensor, "n"]]:
    """For each group and tag, in order of appearance, groups first: which items are in it."""
    of_name: dict[str, set[int]] = {}
    for names in ([(s.group,) for s in squares], [s.tags for s in squares]):
        for i, own in enumerate(names):
            for name in filter(None, own):
                of_name.setdefault(name, set()).add(i)
    members = {}
    for name, chosen in of_name.items():
        members[name] = torch.zeros(len(squares), dtype=torch.bool)
        members[name][list(chosen)] = True
    return members


def _example(square: Square, scores: Float[Tensor, "2 2"], side: int, correct: bool) -> Example:
    """One caption of an item with both images, the preferred one first."""
    first = side if correct else 1 - side
    order = (first, 1 - first)
    return Example(
        query=square.texts[side],
        images=tuple(square.images[i] for i in order),
        scores=tuple(float(scores[i, side]) for i in order),
        true=tuple(i == side for i in order),
        correct=correct,
    )


def _check_twins(squares: Sequence[Square], name: str) -> None:
    for i, square in enumerate(squares):
        if square.images[0] == square.images[1] or square.texts[0] == square.texts[1]:
            raise UserError(
                f"expected two images and two captions in each item of {name}, got item {i} with "
                f"the same image or caption twice ({square.texts[0][:60]!r}): correct the file"
            )


def _at(benchmark: Benchmark) -> str:
    return f": get them from {benchmark.source}" if benchmark.source else ": download them"
