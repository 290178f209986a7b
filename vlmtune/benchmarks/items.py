"""The arrays that items become, which items `limit` leaves, and what occurs twice among them.

In: items as a reader returns them. Out: distinct images, captions and pairs with their truth.
Never: a file format, or a score.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlmtune.results.result import Occurrence, Repeat
from vlmtune.types import ImageRef

LISTED = 20  # repeats of each kind in the report
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class ComparedItem:
    """The images and captions that one item compares, for the list of repeats."""

    images: tuple[ImageRef, ...]
    # Its true captions; of several images, caption i belongs to image i
    true: tuple[str, ...]
    false: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """Equal for two items of the same images and captions, in whatever order."""
        # The order of false candidates says nothing, that of the images does in other rules.
        false = frozenset(self.false)
        if len(self.images) == len(self.true):
            # Two pairs of image and caption are the same item in either order.
            pairs = zip(self.images, self.true, strict=True)
            return frozenset(pairs), false
        return (self.images, self.true), false

    @property
    def repeated(self) -> tuple[str, ...]:
        """The true captions that occur twice in the item."""
        repeated = []
        for caption in dict.fromkeys(self.true):
            if caption in self.false or self.true.count(caption) > 1:
                repeated.append(caption)
        return tuple(repeated)


@dataclass(frozen=True)
class Items(ABC):
    """What a benchmark scores: n items over N distinct images and M distinct captions."""

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    # The distinct pairs (image, caption) that need a score; None for all N x M
    pairs: Int[Tensor, "P 2"] | None
    clusters: Int[Tensor, "n"]  # items of one number share an image; intervals count clusters
    # The items, for the list of repeats; empty where nothing can repeat
    compared: tuple[ComparedItem, ...]

    @property
    @abstractmethod
    def true(self) -> Int[Tensor, "T"] | Int[Tensor, "T 2"]:
        """Positions in `pairs` of the true ones; without `pairs` the true pairs themselves."""

    @property
    def evaluated(self) -> tuple[ComparedItem, ...]:
        """The items in the order of their outcomes."""
        return self.compared

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the scores."""
        if self.pairs is None:
            return len(self.images), len(self.texts)
        return (len(self.pairs),)

    @property
    def truth(self) -> Bool[Tensor, "P"] | Bool[Tensor, "N M"]:
        """True where the caption is true of the image, in the order of the scores."""
        truth = torch.zeros(self.shape, dtype=torch.bool)
        where = tuple(self.true.T) if self.pairs is None else self.true
        truth[where] = True
        return truth


def number(values: Iterable[T]) -> dict[T, int]:
    """Numbers the distinct values in the order of first appearance.

    Example:
        >>> number("abca")
        {'a': 0, 'b': 1, 'c': 2}
    """
    return {value: i for i, value in enumerate(dict.fromkeys(values))}


def numbered(values: Iterable[T]) -> tuple[tuple[T, ...], Int[Tensor, "n"]]:
    """The distinct values in the order of first appearance, and the number of each of n values.

    Example:
        >>> numbered("abca")
        (('a', 'b', 'c'), tensor([0, 1, 2, 0]))
    """
    listed = list(values)  # an iterator could be read once only
    numbers = number(listed)
    number_of_each = [numbers[value] for value in listed]
    return tuple(numbers), torch.tensor(number_of_each, dtype=torch.int64)


def distinct_pairs(
    rows: Int[Tensor, "*items"], columns: Int[Tensor, "*items"]
) -> tuple[Int[Tensor, "P 2"], Int[Tensor, "*items"]]:
    """Lists each pair (row, column) once, with the position of every given pair in the list.

    `scores[positions]` turns the scores of the P pairs into scores of the items.

    Example:
        >>> rows, columns = torch.tensor([[1, 0], [1, 1]]), torch.tensor([[0, 2], [0, 2]])
        >>> pairs, positions = distinct_pairs(rows, columns)
        >>> pairs.tolist(), positions.tolist()
        ([[0, 2], [1, 0], [1, 2]], [[1, 0], [1, 2]])
    """
    width = int(columns.max()) + 1 if columns.numel() else 1
    # One number per pair: far faster than comparing rows of two.
    pair_numbers = rows * width + columns
    distinct, positions = pair_numbers.unique(return_inverse=True)
    distinct_rows = distinct // width
    distinct_columns = distinct % width
    return torch.stack([distinct_rows, distinct_columns], dim=1), positions


def as_stored(item: Any) -> Any:
    """An item whose images are not turned by EXIF, whatever field holds them.

    Example:
        >>> from pathlib import Path
        >>> as_stored((ImageRef(Path("a.png")), "a cat"))[0].upright
        False
    """
    if isinstance(item, ImageRef):
        return replace(item, upright=False)
    if isinstance(item, tuple):
        parts = [as_stored(part) for part in item]
        # A named tuple takes its fields one by one, a plain tuple takes a list.
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    if is_dataclass(item) and not isinstance(item, type):
        names = [field.name for field in fields(item)]
        changed = {name: as_stored(getattr(item, name)) for name in names}
        return replace(item, **changed)
    return item


def sample(groups: Sequence[str], limit: int | None, seed: int | None) -> list[int]:
    """Positions of at most `limit` items of each group in ascending order, the first without seed.

    Example:
        >>> sample(["a", "b", "a", "a", "b"], limit=2, seed=None)
        [0, 1, 2, 4]
        >>> len(sample(["a"] * 9, limit=3, seed=0))
        3
    """
    if limit is None:
        return list(range(len(groups)))
    members: dict[str, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    sampled: list[int] = []
    for positions in members.values():
        order: Sequence[int] = range(len(positions))
        if seed is not None:
            # Each group starts from the seed, so that its sample does not depend on other groups.
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(positions), generator=generator).tolist()
        sampled += [positions[i] for i in order[:limit]]
    return sorted(sampled)  # in the order of the file, as reports list them


def find_repeats(items: Sequence[ComparedItem]) -> tuple[Repeat, ...]:
    """Lists items that occur twice, and captions and images that do so within an item.

    An item whose true caption is also a false one cannot be won, or is won by chance.

    Example:
        >>> from pathlib import Path
        >>> cat, dog = ImageRef(Path("a/cat.png")), ImageRef(Path("a/dog.png"))
        >>> one, two = (ComparedItem((cat,), ("a cat",), (text,)) for text in ("a dog", "a cat"))
        >>> for repeat in find_repeats([one, two, one]):
        ...     print(repeat.kind, repeat.total, repeat.n, repeat.listed)
        item 1 3 (Occurrence(items=(0, 2), images=('a/cat.png',), texts=('a cat',)),)
        caption 1 3 (Occurrence(items=(1,), images=('a/cat.png',), texts=('a cat',)),)
    """
    positions_of: dict[Hashable, list[int]] = {}
    captions = []
    images = []
    for position, item in enumerate(items):
        positions_of.setdefault(item.key, []).append(position)
        repeated = item.repeated
        if repeated:
            captions.append(_occurrence(item, [position], repeated))
        # Two images that are one give every caption a tie.
        has_image_twice = len(set(item.images)) < len(item.images)
        if has_image_twice:
            images.append(_occurrence(item, [position], item.true))
    same = []
    for positions in positions_of.values():
        if len(positions) > 1:
            item = items[positions[0]]
            same.append(_occurrence(item, positions[:LISTED], item.true))
    repeated_items = len(items) - len(positions_of)
    repeats = (
        Repeat("item", repeated_items, len(items), tuple(same[:LISTED])),
        Repeat("caption", len(captions), len(items), tuple(captions[:LISTED])),
        Repeat("image", len(images), len(items), tuple(images[:LISTED])),
    )
    return tuple(repeat for repeat in repeats if repeat.total)


def _occurrence(item: ComparedItem, positions: Sequence[int], texts: tuple[str, ...]) -> Occurrence:
    # An image that occurs twice in an item is named once.
    names = dict.fromkeys(_name(image) for image in item.images)
    return Occurrence(tuple(positions), tuple(names), texts)


def _name(image: ImageRef) -> str:
    """Folder and file name, and the box of a crop."""
    name = "/".join(image.path.parts[-2:])
    return name if image.box is None else f"{name} {list(image.box)}"
