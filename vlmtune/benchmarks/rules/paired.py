"""The paired rule: two images and two captions, caption i true of image i, as in Winoground.

In: `PairedItem`s from a reader. Out: text, image and group accuracy, over all items and by group.
Never: files.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, gallery
from vlmtune.benchmarks.items import Comparison, Items, distinct_pairs, number
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, connected_components
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.paired_accuracy import (
    GROUP_CHANCE,
    IMAGE_CHANCE,
    TEXT_CHANCE,
    equivariance_deviations,
    image_correct,
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


@dataclass(frozen=True)
class PairedAccuracy:
    """Which of n items are right on the text side and on the image side."""

    text: Bool[Tensor, "n"]
    image: Bool[Tensor, "n"]

    @property
    def group(self) -> Bool[Tensor, "n"]:
        """Right on both sides."""
        return self.text & self.image

    @property
    def sides(self) -> tuple[Bool[Tensor, "n"], Bool[Tensor, "n"], Bool[Tensor, "n"]]:
        """Text, image and group."""
        return self.text, self.image, self.group


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
        rows_of: dict[str, list[int]] = {}
        for names in ([(item.group,) for item in self.listed], [x.tags for x in self.listed]):
            for i, item_names in enumerate(names):
                for name in filter(None, dict.fromkeys(item_names)):
                    rows_of.setdefault(name, []).append(i)
        # A group and a tag of one name are one.
        return {name: torch.tensor(sorted({*rows})) for name, rows in rows_of.items()}


class Paired(Benchmark[PairedItems]):
    """Items of two images and two captions, scored as Winoground is.

    An item is right on the text side where each image prefers its caption, on the image side where
    each caption prefers its image, as a group where both hold; a tie is never a win. Random scores
    reach 1/4, 1/4 and 1/6. `series` holds each item's deviation from equivariance on either side
    (`equivariance_deviations` of the metrics) and, as `mean_scores`, the mean 2 x 2 matrix: image 0
    with captions 0 and 1, image 1 with captions 0 and 1.

    Items that share an image are not independent, nor are items of the same two captions: many
    images of few captions tell little of others. Intervals count both.

    A reader returns `PairedItem`s and may override the hooks after it.
    """

    # Names of text, image and group accuracy
    keys: ClassVar[tuple[str, str, str]] = ("text_accuracy", "image_accuracy", "group_accuracy")
    primary_metric: ClassVar[str] = "group_accuracy"
    # Whether an item with the same image or caption twice is an error. Otherwise such an item
    # counts, and is never won.
    twins_differ: ClassVar[bool] = True

    @abstractmethod
    def read(self) -> Sequence[PairedItem]:
        """Reads the annotation files: all items, in the order of the file."""

    def more_metrics(
        self, accuracy: PairedAccuracy, groups: Sequence[str], clusters: Int[Tensor, "n *ways"]
    ) -> dict[str, MetricValue]:
        """Further metrics, such as averages that the source defines over groups."""
        return {}

    def outcomes(self, accuracy: PairedAccuracy) -> Float[Tensor, "n"]:
        """What the primary metric gives each item."""
        return dict(zip(self.keys, accuracy.sides, strict=True))[self.primary].double()

    def weighted_groups(self, groups: Sequence[str]) -> ItemGroups | None:
        """The groups the primary metric is a mean over; None where it is a mean over items."""
        return None

    @override
    def arrange(self, items: Sequence[PairedItem]) -> PairedItems:
        if self.twins_differ:
            self._check_twins(items)
        row_of = number(image for item in items for image in item.images)
        column_of = number(text for item in items for text in item.texts)
        rows = torch.tensor([[row_of[image] for image in item.images] for item in items])
        columns = torch.tensor([[column_of[text] for text in item.texts] for item in items])
        pairs, positions = distinct_pairs(
            rows[:, :, None].expand(-1, 2, 2), columns[:, None, :].expand(-1, 2, 2)
        )
        set_of = number(frozenset(item.texts) for item in items)
        # Crops of one file are not independent either.
        file_of = number(image.path for image in row_of)
        files = torch.tensor([file_of[image.path] for image in row_of])
        return PairedItems(
            images=tuple(row_of),
            texts=tuple(column_of),
            pairs=pairs,
            clusters=connected_components(files[rows]),
            compared=tuple(Comparison(item.images, item.texts) for item in items),
            positions=positions,
            caption_sets=torch.tensor([set_of[frozenset(item.texts)] for item in items]),
            listed=tuple(items),
        )

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        values = scores.detach().cpu().double()[items.positions]
        accuracy = PairedAccuracy(text_correct(values), image_correct(values))
        metrics = self._rates(accuracy, torch.arange(len(values)))
        metrics |= self.more_metrics(accuracy, items.groups, items.ways)
        for name, rows in items.members().items():
            metrics |= self._rates(accuracy, rows, f"/{name}")
        groups = self.weighted_groups(items.groups)
        weights = None if groups is None else groups.weights
        deviations = equivariance_deviations(values)
        true, other = (x.diagonal(dim1=1, dim2=2) for x in (values, values.flip(1)))
        return self.result(
            metrics,
            self.outcomes(accuracy),
            items.clusters,
            caption_sets=tuple(items.caption_sets.tolist()),
            groups=() if groups is None else tuple(groups.members.tolist()),
            group_weights=() if weights is None else tuple(weights.tolist()),
            series={
                "equivariance_text": tuple(deviations[:, 0].tolist()),
                "equivariance_image": tuple(deviations[:, 1].tolist()),
                "mean_scores": tuple(values.mean(dim=0).flatten().tolist()),
            },
            examples=gallery(
                (true > other).flatten().tolist(),
                lambda i: items.listed[i // 2].texts[i % 2],
                lambda i: _example(items.listed[i // 2], values[i // 2], i % 2),
            ),
        )

    def _rates(
        self, accuracy: PairedAccuracy, rows: Int[Tensor, "k"], suffix: str = ""
    ) -> dict[str, MetricValue]:
        """The three accuracies of some items."""
        ways = self.items.ways[rows]
        return {
            key + suffix: cluster_robust_mean(wins[rows].double(), ways, chance)
            for key, wins, chance in zip(self.keys, accuracy.sides, CHANCES, strict=True)
        }

    def _check_twins(self, items: Sequence[PairedItem]) -> None:
        for i, item in enumerate(items):
            if item.images[0] == item.images[1] or item.texts[0] == item.texts[1]:
                raise UserError(
                    f"expected two images and two captions in each item of {self.name}, got item "
                    f"{i} with the same image or caption twice ({item.texts[0][:60]!r}): "
                    "correct the file"
                )


def _example(item: PairedItem, scores: Float[Tensor, "2 2"], side: int) -> Example:
    """One caption of an item with both images, the preferred one first."""
    correct = bool(scores[side, side] > scores[1 - side, side])
    first = side if correct else 1 - side
    order = (first, 1 - first)
    return Example(
        query=item.texts[side],
        images=tuple(item.images[i] for i in order),
        scores=tuple(float(scores[i, side]) for i in order),
        true=tuple(i == side for i in order),
        correct=correct,
    )
