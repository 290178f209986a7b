"""The statements rule: an image and one statement, true or false; a true one must score more.

In: `StatementItem`s from a reader. Out: the area under the ROC curve, over all items and by group,
and with a threshold accuracies. Never: files.
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
from vlmtune.metrics.auroc import auroc, placements
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef


@dataclass(frozen=True)
class StatementItem:
    """One statement about an image."""

    image: ImageRef
    text: str
    is_true: bool
    group: str  # what metrics are reported by, such as a relation

    @property
    def comparison(self) -> ComparedItem:
        """What the report looks for twice."""
        if self.is_true:
            return ComparedItem((self.image,), (self.text,))
        return ComparedItem((self.image,), (), (self.text,))


@dataclass(frozen=True)
class StatementItems(Items):
    """The n statements as arrays."""

    positions: Int[Tensor, "n"]  # of their pairs
    labels: Bool[Tensor, "n"]  # which are true
    groups: tuple[str, ...]  # the distinct groups
    members: Int[Tensor, "n"]  # number of the group of each statement
    listed: tuple[StatementItem, ...]  # the items as they were read

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        return self.positions[self.labels]


class Statements(Benchmark[StatementItems]):
    """How often a true statement scores higher than a false one, of any two.

    - `auroc`: of all pairs of a true and a false statement; a tie counts half, and random scores
      reach 1/2. It needs no threshold, which cosines do not have.
    - `auroc/<group>`: of the pairs of one group, where it has both.

    A reader may have the option `threshold`, above which a statement counts as true. Then there are
    also `acc`, the fraction of statements judged right, and `p_c` and `p_f`, the same of true and
    of false ones, each also by group. A score on the threshold is wrong.
    """

    primary_metric: ClassVar[str] = "auroc"
    partial_credit: ClassVar[bool] = True

    @override
    def arrange(self, items: Sequence[StatementItem]) -> StatementItems:
        images, rows = numbered(item.image for item in items)
        texts, columns = numbered(item.text for item in items)
        groups, members = numbered(item.group for item in items)
        pairs, positions = distinct_pairs(rows, columns)
        compared = [item.comparison for item in items]
        return StatementItems(
            images=images,
            texts=texts,
            pairs=pairs,
            clusters=rows,
            compared=tuple(compared),
            positions=positions,
            labels=torch.tensor([item.is_true for item in items]),
            groups=groups,
            members=members,
            listed=tuple(items),
        )

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        labels = items.labels
        values = scores.double()[items.positions]
        metrics = self._metrics(values, torch.ones_like(labels))
        for number, group in enumerate(items.groups):
            rows = items.members == number
            # Of one kind alone there is nothing to tell apart.
            if (labels & rows).any() and (~labels & rows).any():
                for key, metric in self._metrics(values, rows).items():
                    metrics[f"{key}/{group}"] = metric
        # A true statement gets the fraction of false ones below it, a false one that of true ones
        # above it. The mean of either kind is the area.
        outcomes = torch.zeros(len(values), dtype=torch.float64)
        outcomes[labels] = placements(values[labels], values[~labels])
        outcomes[~labels] = 1 - placements(values[~labels], values[labels])
        # A true statement is shown as right where it scores above most false ones.
        right: list[bool | None] = (outcomes > 1 / 2).tolist()
        for row in (~labels).nonzero()[:, 0].tolist():
            right[row] = None

        def show(row: int) -> Example:
            item = items.listed[row]
            score = float(values[row])
            is_right = right[row] is True
            return Example(item.text, (item.image,), (score,), (True,), is_right)

        return self.result(
            metrics,
            outcomes,
            items.clusters,
            examples=gallery(right, items.clusters.tolist().__getitem__, show),
            groups=tuple(labels.long().tolist()),
            degree=2,
        )

    def _metrics(
        self, values: Float[Tensor, "n"], rows: Bool[Tensor, "n"]
    ) -> dict[str, MetricValue]:
        labels = self.items.labels
        clusters = self.items.clusters
        true = labels & rows
        false = ~labels & rows
        images = torch.cat([clusters[true], clusters[false]])
        metrics = {"auroc": auroc(values[true], values[false], images)}
        # An option of readers whose source has one, as `convention` is.
        threshold: float | None = getattr(self, "threshold", None)
        if threshold is None:
            return metrics
        # A score on the threshold is on neither side, and wrong.
        above = values > threshold
        below = values < threshold
        right = torch.where(labels, above, below).double()
        metrics["acc"] = cluster_robust_mean(right[rows], clusters[rows], 1 / 2)
        metrics["p_c"] = cluster_robust_mean(right[true], clusters[true])
        metrics["p_f"] = cluster_robust_mean(right[false], clusters[false])
        return metrics
