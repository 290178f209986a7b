"""VSR: a photograph and one statement about where two things are, which is true or false.

In: the JSON lines and COCO's images. Out: how well scores separate true statements from false ones.

File: `all_vsr_validated_data.jsonl` (10,972 statements, 66 relations), or a file of a split, lines
of `{"image", "image_link", "caption", "label", "relation", ...}`; label 1 is true. Images lie in
`train2017` and `val2017`, as the last two parts of the link say. Source: Liu et al. 2023, Visual
Spatial Reasoning, sections 3 and 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import TypedDict, override

from vlmtune.benchmarks.base import Benchmark, gallery
from vlmtune.benchmarks.files import Text, first_file, get_file, write_image, write_json
from vlmtune.benchmarks.items import ComparedItem, Items, distinct_pairs, numbered
from vlmtune.metrics.auroc import auroc, placements
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Result
from vlmtune.storage.files import check_shape
from vlmtune.types import ImageRef

KEYS = ("image", "image_link", "caption", "relation")


class _Row(TypedDict):
    image: Text
    image_link: Text
    caption: Text
    relation: Text
    label: Literal[0, 1]


@dataclass(frozen=True)
class SpatialStatement:
    """One statement about an image."""

    image: ImageRef
    text: str
    relation: str
    is_true: bool

    @property
    def comparison(self) -> ComparedItem:
        """What the report looks for twice."""
        if self.is_true:
            return ComparedItem((self.image,), (self.text,))
        return ComparedItem((self.image,), (), (self.text,))


@dataclass(frozen=True)
class SpatialItems(Items):
    """The n statements as arrays."""

    positions: Int[Tensor, "n"]  # of their pairs
    labels: Bool[Tensor, "n"]  # which are true
    relations: tuple[str, ...]  # the distinct relations
    members: Int[Tensor, "n"]  # number of the relation of each statement

    @property
    @override
    def true(self) -> Int[Tensor, "T"]:
        return self.positions[self.labels]


class VSR(Benchmark[SpatialItems]):
    """How often a true statement scores higher than a false one, of any two.

    - `auroc`: of all pairs of a true and a false statement; a tie counts half, and random scores
      reach 1/2. It needs no threshold, which cosines do not have.
    - `auroc/<relation>`: of the pairs of one relation, where it has both.

    With a threshold above which a statement counts as true, also `acc`, the fraction of statements
    judged right, the published number; `p_c` and `p_f`, the same of true and of false ones. A score
    on the threshold is wrong. The paper's models were trained to say true or false; for a model
    that was not, choose the threshold on the split for development.

    Args:
        path: The file with the statements.
        images: The folder with `train2017` and `val2017`, or with all images.
        threshold: The score above which a statement counts as true.
    """

    version = "2"  # outcomes of all statements
    primary_metric = "auroc"
    partial_credit = True
    full_name = "VSR"
    asks = "relations"
    citation = "Liu et al. 2023, Visual Spatial Reasoning, section 5 (accuracy)"
    source = "vlmtune download vsr"

    path: str
    images: str
    threshold: float | None = None

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "VSR":
        statements = (("cat", "under", 1), ("cat", "on", 0), ("dog", "under", 0), ("dog", "on", 1))
        rows = []
        for i, (animal, relation, label) in enumerate(statements):
            link = f"train2017/{i // 2}.jpg"
            write_image(folder / link, 60 * i, 90, 0)
            row = {"image": f"{i // 2}.jpg", "image_link": f"http://images.cocodataset.org/{link}"}
            row["caption"] = f"The {animal} is {relation} the car."
            rows.append({**row, "label": label, "relation": relation})
        return cls(write_json(folder / "vsr.jsonl", rows), str(folder))

    @override
    def read(self) -> list[SpatialStatement]:
        layout = "statements with a label 0 or 1"
        rows = self.rows(self.path, *KEYS)
        checked = check_shape(rows, list[_Row], self.path, layout, get_file(self.source))
        items = []
        for row in checked:
            # The link ends in "train2017/0001.jpg": it alone says which folder has the image.
            split = Path(row["image_link"]).parent.name
            in_split = Path(self.images, split, row["image"])
            in_folder = Path(self.images, row["image"])
            image = ImageRef(first_file([in_split, in_folder]))
            is_true = row["label"] == 1
            items.append(SpatialStatement(image, row["caption"], row["relation"], is_true))
        return items

    @override
    def arrange(self, items: Sequence[SpatialStatement]) -> SpatialItems:
        images, rows = numbered(item.image for item in items)
        texts, columns = numbered(item.text for item in items)
        relations, members = numbered(item.relation for item in items)
        pairs, positions = distinct_pairs(rows, columns)
        compared = [item.comparison for item in items]
        return SpatialItems(
            images=images,
            texts=texts,
            pairs=pairs,
            clusters=rows,
            compared=tuple(compared),
            positions=positions,
            labels=torch.tensor([item.is_true for item in items]),
            relations=relations,
            members=members,
        )

    @override
    def evaluate(self, scores: Float[Tensor, "P"]) -> Result:
        items = self.items
        labels = items.labels
        values = scores.double()[items.positions]
        metrics = self._metrics(values, torch.ones_like(labels))
        for number, relation in enumerate(items.relations):
            rows = items.members == number
            # Of one kind alone there is nothing to tell apart.
            if (labels & rows).any() and (~labels & rows).any():
                for key, metric in self._metrics(values, rows).items():
                    metrics[f"{key}/{relation}"] = metric
        # A true statement gets the fraction of false ones below it, a false one that of true ones
        # above it. The mean of either kind is the area.
        outcomes = torch.zeros(len(values), dtype=torch.float64)
        outcomes[labels] = placements(values[labels], values[~labels])
        outcomes[~labels] = 1 - placements(values[~labels], values[labels])
        true = labels.nonzero()[:, 0].tolist()

        def show(number: int) -> Example:
            statement = true[number]
            pair = int(items.positions[statement])
            assert items.pairs is not None
            row, column = items.pairs[pair].tolist()
            return Example(
                query=items.texts[column],
                images=(items.images[row],),
                scores=(float(values[statement]),),
                true=(True,),
                correct=bool(outcomes[statement] > 1 / 2),
            )

        # A true statement is shown as right where it scores above most false ones.
        clusters = items.clusters[labels]
        right = (outcomes[labels] > 1 / 2).tolist()
        examples = gallery(right, lambda number: int(clusters[number]), show)
        return self.result(
            metrics,
            outcomes,
            items.clusters,
            examples=examples,
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
        if self.threshold is None:
            return metrics
        # A score on the threshold is on neither side, and wrong.
        above = values > self.threshold
        below = values < self.threshold
        right = torch.where(labels, above, below).double()
        metrics["acc"] = cluster_robust_mean(right[rows], clusters[rows], 1 / 2)
        metrics["p_c"] = cluster_robust_mean(right[true], clusters[true])
        metrics["p_f"] = cluster_robust_mean(right[false], clusters[false])
        return metrics
