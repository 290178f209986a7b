"""The items of a benchmark that chooses captions, and the same as arrays."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from vlmtune.benchmarks.base import distinct_pairs
from vlmtune.types import ImageRef

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Choice:
    """One item.

    Attributes:
        image: The image, whole or cropped.
        candidates: At least two captions, of which the first is true.
        group: Relation, attribute pair or type; "" where the benchmark has no groups.
    """

    image: ImageRef
    candidates: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True)
class ChoiceItems:
    """The n items as arrays, their candidates in up to m columns, the true one first.

    Attributes:
        images: The distinct images.
        texts: The distinct captions.
        pairs: Which images and captions are compared.
        places: Positions in `pairs`, -1 where an item has no further candidate.
        groups: The distinct groups.
        members: Positions in `groups`.
        clusters: Number of the image file.
        drawn: The items as they were read, also those that do not count.
        identical: How many of them have a candidate that repeats the true one.
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    pairs: Int[Tensor, "P 2"]
    places: Int[Tensor, "n m"]
    groups: tuple[str, ...]
    members: Int[Tensor, "n"]
    clusters: Int[Tensor, "n"]
    drawn: tuple[Choice, ...]
    identical: int

    @property
    def sizes(self) -> Int[Tensor, "n"]:
        """Number of candidates of each item."""
        return (self.places >= 0).sum(dim=1)

    def rows_of_groups(self) -> dict[str, Int[Tensor, "rows"]]:
        """The items of each group."""
        order = torch.argsort(self.members, stable=True)
        counts = torch.bincount(self.members, minlength=len(self.groups)).tolist()
        return dict(zip(self.groups, order.split(counts), strict=True))

    def group_sizes(self) -> dict[str, int]:
        """How many items each group has."""
        return {group: len(rows) for group, rows in self.rows_of_groups().items()}


def arrays(choices: Sequence[Choice], drawn: Sequence[Choice], identical: int) -> ChoiceItems:
    """Numbers the images, captions, pairs and groups of the items that count.

    Args:
        choices: These items, at least one.
        drawn: All items.
        identical: How many of them have a candidate that repeats the true one.
    """
    rows = _numbered(choice.image for choice in choices)
    columns = _numbered(text for choice in choices for text in choice.candidates)
    groups = _numbered(choice.group for choice in choices)
    files = _numbered(choice.image.path for choice in choices)
    width = max(len(choice.candidates) for choice in choices)
    # Places without a candidate repeat the true one, so that they ask for no score.
    codes, sizes = [], []
    for choice in choices:
        own = [columns[text] for text in choice.candidates]
        codes.append([*own, *own[:1] * (width - len(own))])
        sizes.append(len(own))
    code, images = torch.tensor(codes), torch.tensor([rows[choice.image] for choice in choices])
    pairs, places = distinct_pairs(images[:, None].expand_as(code), code)
    places[torch.arange(width) >= torch.tensor(sizes)[:, None]] = -1
    return ChoiceItems(
        images=tuple(rows),
        texts=tuple(columns),
        pairs=pairs,
        places=places,
        groups=tuple(groups),
        members=torch.tensor([groups[choice.group] for choice in choices]),
        clusters=torch.tensor([files[choice.image.path] for choice in choices]),
        drawn=tuple(drawn),
        identical=identical,
    )


def _numbered(things: Iterable[T]) -> dict[T, int]:
    """The distinct things with their positions, in the order of first appearance."""
    return {thing: i for i, thing in enumerate(dict.fromkeys(things))}
