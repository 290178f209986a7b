"""The items of the multiple-choice rule as arrays: each image with its candidate captions.

In: `ChoiceItem`s. Out: positions of their candidates among the pairs. Never: a score.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from math import comb

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.items import ComparedItem, Items
from vlmtune.metrics.multiple_choice import Ties
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class ChoiceItem:
    """One item."""

    image: ImageRef  # the image, whole or cropped
    candidates: tuple[str, ...]  # its captions, the true ones first
    group: str = ""  # relation, attribute pair or type; "" without groups
    true: int = 1  # how many of the candidates are true

    @property
    def scored_pairs(self) -> tuple[tuple[ImageRef, str], ...]:
        """The pairs whose scores are compared, at least two, the true ones first."""
        return tuple((self.image, text) for text in self.candidates)

    @property
    def cluster(self) -> Hashable:
        """Items of one cluster vary together, as crops of one file do."""
        return self.image.path

    @property
    def comparison(self) -> ComparedItem:
        """What the item compares."""
        true = self.candidates[: self.true]
        false = self.candidates[self.true :]
        return ComparedItem((self.image,), true, false)


@dataclass(frozen=True)
class ChoiceItems(Items):
    """The n items as arrays, their candidates in up to m columns, the true ones first."""

    # Positions of the candidates in `pairs`; -1 where an item has no further one
    positions: Int[Tensor, "n m"]
    true_counts: Int[Tensor, "n"]  # how many candidates are true
    groups: tuple[str, ...]  # the distinct groups
    members: Int[Tensor, "n"]  # number of the group of each item
    identical: int  # how many items have a false candidate that repeats a true one
    kept: tuple[ChoiceItem, ...]  # the items as the convention counts them

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        column = torch.arange(self.positions.shape[1])
        is_true = column < self.true_counts[:, None]
        return self.positions[is_true]

    @property
    @override
    def evaluated(self) -> tuple[ComparedItem, ...]:
        return tuple(item.comparison for item in self.kept)

    @property
    def sizes(self) -> Int[Tensor, "n"]:
        """Number of candidates of each item."""
        return (self.positions >= 0).sum(dim=1)

    def group_sizes(self) -> dict[str, int]:
        """Number of items of each group."""
        counts = torch.bincount(self.members, minlength=len(self.groups))
        return dict(zip(self.groups, counts.tolist(), strict=True))

    def chance(self, ties: Ties = "wrong") -> Float[Tensor, "n"]:
        """The probability that random scores put all true candidates first.

        Equal candidates have one score, so they count once. One that is true and false is a tie.
        """
        chances = []
        rows = zip(self.positions.tolist(), self.true_counts.tolist(), strict=True)
        for positions, true_count in rows:
            different = {position for position in positions if position >= 0}
            true = set(positions[:true_count])
            false = positions[true_count:]
            # Of all ways to choose as many candidates as are true, one is right.
            chance = 1 / comb(len(different), len(true))
            if ties == "wrong" and not true.isdisjoint(false):
                chance = 0.0
            chances.append(chance)
        return torch.tensor(chances).double()
