"""The items of the classification rule as arrays: banks of images with the same candidates.

In: `ClassItem`s and their `Candidate`s. Out: numbers of images, prompts and classes. Never: a score
that a metric is computed from.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.items import Items, number
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class ClassItem:
    """One image of one class."""

    image: ImageRef
    label: str
    group: str  # what accuracies are reported by, and what `limit` counts within
    cluster: Hashable  # items of one cluster do not vary independently


@dataclass(frozen=True)
class Candidate:
    """What an image may be taken for."""

    prompts: tuple[str, ...]  # its score is their mean score
    label: str | None  # the class it stands for; None for one that is never right
    name: str  # what the gallery calls it


@dataclass(frozen=True)
class Bank:
    """Images with the same candidates."""

    items: Int[Tensor, "n"]  # numbers of the n items
    images: Int[Tensor, "n"]  # numbers of their images
    texts: Int[Tensor, "m"]  # numbers of the distinct prompts
    prompts: Int[Tensor, "C t"]  # positions in `texts` of the t prompts of each of C candidates
    labels: Int[Tensor, "n"]  # number of the class of each item
    classes: Int[Tensor, "C"]  # number of the class that each candidate stands for, -1 for none
    names: tuple[str, ...]  # what each candidate is called

    @property
    def true(self) -> Int[Tensor, "T 2"]:
        """The true pairs of an image and a prompt."""
        is_true = self.labels[:, None] == self.classes
        # An image is true of every prompt of its candidates.
        rows, candidates = is_true.nonzero().unbind(dim=1)
        prompts = self.texts[self.prompts[candidates]]
        images_of_rows = self.images[rows]
        images = images_of_rows[:, None].expand_as(prompts)
        pairs = torch.stack([images, prompts], dim=-1)
        return pairs.view(-1, 2)

    def by_candidate(self, scores: Float[Tensor, "k m"]) -> Float[Tensor, "k C"]:
        """The mean score of the prompts of each candidate."""
        # One prompt each, in order: the usual case needs no copy of the scores.
        one_each = torch.arange(len(self.texts))[:, None]
        if self.prompts.equal(one_each):
            return scores
        # In double precision, template by template: a gather of all would copy the scores t times.
        total = torch.zeros(len(scores), len(self.prompts), dtype=torch.float64)
        for columns in self.prompts.unbind(dim=1):
            total += scores[:, columns]
        return total / self.prompts.shape[1]


@dataclass(frozen=True)
class ClassItems(Items):
    """The n items as arrays."""

    banks: tuple[Bank, ...]  # the items by candidates
    groups: tuple[str, ...]  # the distinct groups
    members: Int[Tensor, "n"]  # number of the group of each item
    labels: Int[Tensor, "n"]  # number of the class of each item, in alphabetical order
    chance: Float[Tensor, "n"]  # what random scores reach for each item
    candidates: Int[Tensor, "n"]  # number of candidates of each item

    @property
    @override
    def true(self) -> Int[Tensor, "T 2"]:
        return torch.cat([bank.true for bank in self.banks])


def make_bank(
    candidates: Sequence[Candidate],
    texts: dict[str, int],
    labels: Mapping[str, int],
    items: Int[Tensor, "n"],
    images: Int[Tensor, "n"],
    item_labels: Int[Tensor, "n"],
) -> Bank:
    """Makes a bank of n items; adds its prompts to the numbers of `texts`."""
    prompts = [candidate.prompts for candidate in candidates]
    # Two candidates may share a prompt: each distinct prompt of the bank is a column once.
    columns = number(chain.from_iterable(prompts))
    text_numbers = [texts.setdefault(text, len(texts)) for text in columns]
    positions = []
    for prompts_of_candidate in prompts:
        positions.append([columns[prompt] for prompt in prompts_of_candidate])
    classes = [labels.get(candidate.label or "", -1) for candidate in candidates]
    names = [candidate.name for candidate in candidates]
    return Bank(
        items=items,
        images=images,
        texts=torch.tensor(text_numbers),
        prompts=torch.tensor(positions),
        labels=item_labels,
        classes=torch.tensor(classes),
        names=tuple(names),
    )
