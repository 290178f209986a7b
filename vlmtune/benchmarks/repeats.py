"""What occurs twice in a benchmark: whole items, and captions or images within one.

A repeated item counts twice, and an item whose right caption is also a wrong one cannot be won, or
is won by chance: both are listed in the report, so that they can be looked at.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from vlmtune.report.result import Occurrence, Repeat
from vlmtune.types import ImageRef

KEPT = 20  # of each kind that are listed


@dataclass(frozen=True)
class Item:
    """What one item of a benchmark compares.

    Attributes:
        images: Its images.
        true: Its right captions; where there are as many as images, each is the one's at its place.
        false: Its wrong captions.
    """

    images: tuple[ImageRef, ...]
    true: tuple[str, ...]
    false: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """What two items that are the same have in common; order does not matter."""
        paired = len(self.images) == len(self.true)
        right = frozenset(zip(self.images, self.true, strict=True)) if paired else None
        return right or (self.images, self.true), frozenset(self.false)

    @property
    def twice(self) -> tuple[str, ...]:
        """The captions that are given twice, at least once as a right one."""
        again = {text for text in self.true if self.true.count(text) > 1} | {*self.false}
        return tuple(dict.fromkeys(text for text in self.true if text in again))


def find_repeats(items: Sequence[Item]) -> tuple[Repeat, ...]:
    """Lists items that occur twice, and captions and images that do so within an item.

    Example:
        >>> from pathlib import Path
        >>> cat, dog = ImageRef(Path("a/cat.png")), ImageRef(Path("a/dog.png"))
        >>> items = [Item((cat,), ("a cat",), ("a dog",)), Item((dog,), ("a dog",), ("a dog",))]
        >>> for repeat in find_repeats([*items, items[0]]):
        ...     print(repeat.kind, repeat.total, repeat.n, repeat.listed)
        item 1 3 (Occurrence(items=(0, 2), images=('a/cat.png',), texts=('a cat',)),)
        caption 1 3 (Occurrence(items=(1,), images=('a/dog.png',), texts=('a dog',)),)
    """
    places: dict[Hashable, list[int]] = {}
    for i, item in enumerate(items):
        places.setdefault(item.key, []).append(i)
    same = [own for own in places.values() if len(own) > 1]
    captions = [i for i, item in enumerate(items) if item.twice]
    images = [i for i, item in enumerate(items) if len(set(item.images)) < len(item.images)]

    def repeat(
        kind: Literal["item", "caption", "image"], total: int, found: Iterable[Occurrence]
    ) -> Repeat:
        return Repeat(kind, total, len(items), tuple(found))

    listed = [
        repeat(
            "item",
            sum(len(own) - 1 for own in same),
            (_occurrence(own, items[own[0]].images, items[own[0]].true) for own in same[:KEPT]),
        ),
        repeat(
            "caption",
            len(captions),
            (_occurrence([i], items[i].images, items[i].twice) for i in captions[:KEPT]),
        ),
        repeat(
            "image",
            len(images),
            (_occurrence([i], items[i].images, items[i].true) for i in images[:KEPT]),
        ),
    ]
    return tuple(one for one in listed if one.total)


def _occurrence(
    places: list[int], images: tuple[ImageRef, ...], texts: tuple[str, ...]
) -> Occurrence:
    return Occurrence(tuple(places[:KEPT]), tuple(dict.fromkeys(map(_name, images))), texts)


def _name(image: ImageRef) -> str:
    """Folder and file name, and the box where there is one."""
    name = "/".join(image.path.parts[-2:])
    return name if image.box is None else f"{name} {list(image.box)}"
