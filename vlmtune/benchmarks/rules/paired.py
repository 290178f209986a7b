"""The paired rule: two images and two captions, caption i true of image i, as in Winoground.

In: `PairedItem`s from a reader. Out: text, image and group accuracy, over all items and by group.
Never: files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, gallery
from vlmtune.benchmarks.items import ComparedItem, Items, distinct_pairs, numbered
from vlmtune.metrics.cluster_robust import cluster_robust_mean, connected_components
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.paired_accuracy import (
    GROUP_CHANCE,
    IMAGE_CHANCE,
    TEXT_CHANCE,
    equivariance_deviations,
    image_correct,
    matching_chance,
    matching_correct,
    text_correct,
)
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef

CHANCES = (TEXT_CHANCE, IMAGE_CHANCE, GROUP_CHANCE)


@dataclass(frozen=True)
class PairedItem:
    """One item: `texts[i]` is true of `images[i]` and of no other."""

    images: tuple[ImageRef, ImageRef]
    texts: tuple[str, str]
    group: str = ""  # the part of the benchmark it belongs to; "" without parts
    tags: tuple[str, ...] = ()  # further names under which its accuracy is reported


Wins = tuple[Bool[Tensor, "n"], Bool[Tensor, "n"], Bool[Tensor, "n"]]
"""Which of n items are right on the text side, on the image side, and on both."""


@dataclass(frozen=True)
class PairedItems(Items):
    """The n items as arrays."""

    positions: Int[Tensor, "n 2 2"]  # positions in `pairs` of image i with caption j
    caption_sets: Int[Tensor, "n"]  # items of one number have the same two captions
    listed: tuple[PairedItem, ...]  # the items as they were read

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        return self.positions.diagonal(dim1=1, dim2=2).flatten()

    @property
    def ways(self) -> Int[Tensor, "n 2"]:
        """The clusters of each item, by image and by captions."""
        return torch.stack([self.clusters, self.caption_sets], dim=1)

    @property
    def groups(self) -> list[str]:
        """The group of each item."""
        return [item.group for item in self.listed]

    def members(self) -> dict[str, Int[Tensor, "k"]]:
        """The items of each group and tag, in order of appearance, groups first."""
        rows_of: dict[str, list[int]] = {group: [] for group in self.groups if group}
        for row, item in enumerate(self.listed):
            # A group and a tag of one name are one, and a tag may be given twice.
            for name in dict.fromkeys((item.group, *item.tags)):
                if name:
                    rows_of.setdefault(name, []).append(row)
        return {name: torch.tensor(rows) for name, rows in rows_of.items()}


class Paired(Benchmark[PairedItems]):
    """Items of two images and two captions, scored as Winoground is.

    An item is right on the text side where each image prefers its caption, on the image side where
    each caption prefers its image, as a group where both hold; a tie is never a win. Random scores
    reach 1/4, 1/4 and 1/6. `group_match` asks only that the true matching of both images with both
    captions has the highest total (`matching_correct`): random scores reach 1/2, so it compares
    with no group accuracy. An item with one image or caption twice is never won, and the report
    lists it. `series` holds each item's deviation from equivariance on either side
    (`equivariance_deviations` of the metrics) and, as `mean_scores`, the mean 2 x 2 matrix: image 0
    with captions 0 and 1, image 1 with captions 0 and 1.

    Intervals count images and captions: items that share either are not independent.

    A reader returns `PairedItem`s and may override the hooks after it.
    """

    # Names of text, image and group accuracy
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "image_accuracy", "group_accuracy")
    primary_metric: ClassVar[str] = "group_accuracy"

    def more_metrics(
        self, wins: Wins, groups: Sequence[str], clusters: Int[Tensor, "n *ways"]
    ) -> dict[str, MetricValue]:
        """Further metrics, such as averages that the source defines over groups."""
        return {}

    def outcomes(self, wins: Wins) -> Float[Tensor, "n"]:
        """What the primary metric gives each item."""
        return wins[self.keys.index(self.primary)].double()

    def weighted_groups(self, groups: Sequence[str]) -> ItemGroups | None:
        """The groups the primary metric is a mean over; None where it is a mean over items."""
        return None

    @override
    def arrange(self, items: Sequence[PairedItem]) -> PairedItems:
        all_images: list[ImageRef] = []
        all_texts: list[str] = []
        for item in items:
            all_images += item.images
            all_texts += item.texts
        images, image_numbers = numbered(all_images)
        texts, text_numbers = numbered(all_texts)
        rows = image_numbers.view(-1, 2)
        columns = text_numbers.view(-1, 2)
        # Each image of an item with each of its captions.
        each_image = rows[:, :, None].expand(-1, 2, 2)
        each_text = columns[:, None, :].expand(-1, 2, 2)
        pairs, positions = distinct_pairs(each_image, each_text)
        # Crops of one file are not independent either.
        _, files = numbered(image.path for image in images)
        # In either order: which caption comes first says nothing.
        _, caption_sets = numbered(frozenset(item.texts) for item in items)
        comparisons = [ComparedItem(item.images, item.texts) for item in items]
        return PairedItems(
            images=images,
            texts=texts,
            pairs=pairs,
            clusters=connected_components(files[rows]),
            compared=tuple(comparisons),
            positions=positions,
            caption_sets=caption_sets,
            listed=tuple(items),
        )

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        # Of each item the score of image i with caption j.
        values = scores.double()[items.positions]
        text = text_correct(values)
        image = image_correct(values)
        wins = (text, image, text & image)
        metrics = self._rates(wins, torch.arange(len(values)))
        matched = matching_correct(values).double()
        metrics["group_match"] = cluster_robust_mean(matched, items.ways, matching_chance(2))
        metrics |= self.more_metrics(wins, items.groups, items.ways)
        for name, rows in items.members().items():
            metrics |= self._rates(wins, rows, f"/{name}")
        # A report compares two runs item by item, so it needs the weight of each.
        members: tuple[int, ...] = ()
        weights: tuple[float, ...] = ()
        groups = self.weighted_groups(items.groups)
        if groups is not None:
            members = tuple(groups.members.tolist())
            if groups.weights is not None:
                weights = tuple(groups.weights.tolist())
        return self.result(
            metrics,
            self.outcomes(wins),
            items.clusters,
            caption_sets=tuple(items.caption_sets.tolist()),
            groups=members,
            group_weights=weights,
            series=_series(values),
            examples=self._examples(values),
        )

    def _examples(self, values: Float[Tensor, "n 2 2"]) -> tuple[Example, ...]:
        """A gallery of captions, two an item: each with its own image and the other image."""
        listed = self.items.listed
        # Of each caption its score with its own image, and with the other one.
        matched = values.diagonal(dim1=1, dim2=2)
        other = values.flip(1).diagonal(dim1=1, dim2=2)
        prefers_its_image = (matched > other).flatten()

        def caption(number: int) -> str:
            item, side = divmod(number, 2)
            return listed[item].texts[side]

        def show(number: int) -> Example:
            item, side = divmod(number, 2)
            return _example(listed[item], values[item], side)

        return gallery(prefers_its_image.tolist(), caption, show)

    def _rates(
        self, wins: Wins, rows: Int[Tensor, "k"], suffix: str = ""
    ) -> dict[str, MetricValue]:
        """The three accuracies of some items."""
        ways = self.items.ways[rows]
        rates = {}
        for key, won, chance in zip(self.keys, wins, CHANCES, strict=True):
            outcomes = won[rows].double()
            rates[f"{key}{suffix}"] = cluster_robust_mean(outcomes, ways, chance)
        return rates


def _series(values: Float[Tensor, "n 2 2"]) -> dict[str, tuple[float, ...]]:
    deviations = equivariance_deviations(values)
    by_text, by_image = deviations.T.tolist()
    mean_scores = values.mean(dim=0).flatten()
    return {
        "equivariance_text": tuple(by_text),
        "equivariance_image": tuple(by_image),
        "mean_scores": tuple(mean_scores.tolist()),
    }


def _example(item: PairedItem, scores: Float[Tensor, "2 2"], side: int) -> Example:
    """One caption of an item with both images, the preferred one first."""
    correct = bool(scores[side, side] > scores[1 - side, side])
    first = side if correct else 1 - side
    second = 1 - first
    return Example(
        query=item.texts[side],
        images=(item.images[first], item.images[second]),
        scores=(float(scores[first, side]), float(scores[second, side])),
        true=(first == side, second == side),
        correct=correct,
    )
