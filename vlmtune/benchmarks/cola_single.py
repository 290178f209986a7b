"""Cola, single-object queries: rank images for "square white plate" among hard distractors.

In: a benchmark file and its images. Out: mean average precisions over queries.

Files for GQA (320 queries, 1,952 images), CLEVR (96; 22,500) and PACO (400; 7,921); their layout
is described in `vlmtune.benchmarks.cola_files`. Source: Ray et al. 2023, sections 3, 5.1 and 10.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, Convention, gallery
from vlmtune.benchmarks.cola_files import Queries, read_queries, read_subsets, spelled
from vlmtune.benchmarks.files import write_image, write_json
from vlmtune.benchmarks.items import Items
from vlmtune.benchmarks.pair_scorer import PairScores
from vlmtune.benchmarks.queries import query_row
from vlmtune.benchmarks.rules.ranking import BEST, best_images
from vlmtune.errors import UserError
from vlmtune.metrics.average_precision import ClassPrecision, class_average_precision
from vlmtune.metrics.intervals import bootstrap_mean
from vlmtune.metrics.ranking import f1_at_positives, mean_ranks, true_ranks
from vlmtune.results.item_row import ItemRow
from vlmtune.results.metric_value import MetricValue, count
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef


class QueryImage(NamedTuple):
    """One item: an image, and its row in the file."""

    image: ImageRef
    row: int


@dataclass(frozen=True)
class QueryItems(Items):
    """N images with C queries."""

    queries: Queries  # which image is true of, or near, which query
    subsets: dict[str, Bool[Tensor, "C"]]  # the queries of further means, by the end of their key

    @property
    @override
    def true(self) -> Int[Tensor, "T"] | Int[Tensor, "T 2"]:
        labels = self.queries.labels
        if self.pairs is None:
            return labels.nonzero()
        return labels[tuple(self.pairs.T)].nonzero()[:, 0]


class ColaSingle(Benchmark[QueryItems]):
    """Mean average precision of queries over images that hold at least one of their words.

    - `map`: mean over classes of the AP within the hard set (`hard` = 1: an attribute of the query
      on any object, or its object). Classes without a positive anywhere or with an empty hard set
      are left out, and so is, by the strict convention, a class with positives none of which is in
      its hard set; the counts are metrics (`classes_...`).
    - `map/attributes=2`: over the queries that state two attributes (figure 5), and so on.
    - `map_seen`, `map_unseen`: over a part of the classes, with `seen`.
    - `standard_map`: AP over all images.
    - `query_all_map`: AP over images that have all words of the query, on any objects (true ones
      always belong); `mean_rank_true` and `mean_rank_distractor`: mean ranks within that pool, ties
      ranked last, averaged over classes that have both. Only where the objects are annotated.
    - `f1`: within the hard set, the first P images predicted (see `f1_at_positives`).

    Chance is the mean over classes of what random scores reach; intervals resample the classes.

    Conventions differ in two points. Tied scores share one threshold in both, and logits are not
    squashed by a sigmoid: the published script runs only with torchmetrics before 0.11.

    - "strict": a class with positives outside its hard set alone has no AP. PACO's names are read
      as words ("light_blue car_(automobile)": "light blue car"), see `cola_files.spelled`.
    - "reference": it counts as 0, as with torchmetrics 1.x. Queries are scored as the file writes
      them; how Cola's authors turned PACO's names into words is not published.

    Args:
        seen: JSON file `{"seen": [label, ...], "unseen": [label, ...]}`, labels as in the benchmark
            file; those not named count only in the whole.
        standard: Also score images outside the hard sets, for `standard_map`. Without it a joint
            model, which pays for each pair, has a fraction of the pairs to score.
        convention: See above. `limit` counts images; AP and its chance grow as pools shrink, so
            such numbers do not compare with numbers of all images.
    """

    primary_metric = "map"
    full_name = "Cola single-object"
    asks = "attributes"
    citation = "Ray et al. 2023, Cola, sections 3, 5.1 and 10 (single-object mAP)"
    source = "vlmtune download cola_single"
    partial_credit = True

    path: str
    images: str
    seen: str | None = None
    standard: bool = True
    convention: Convention = "strict"

    @override
    @classmethod
    def fixture(cls, folder: Path) -> "ColaSingle":
        labels = [[["red"], "cube"], [["blue"], "cube"], [["red"], "cone"]]
        # The queries that are true of each image, and its objects.
        scenes = [
            ([0], ["red cube", "blue cone"]),
            ([1, 2], ["blue cube", "red cone"]),
            ([0], ["red cube"]),
            ([1], ["blue cube", "red ball"]),
            ([2], ["red cone", "blue ball"]),
            ([], ["green ball", "grey disc"]),
        ]
        data = []
        for i, (true, objects) in enumerate(scenes):
            file = f"{i}.png"
            write_image(folder / file, 40 * i, 0, 255 - 40 * i)
            annotation = []
            present = set()
            for described in objects:
                attribute, noun = described.split()
                annotation.append([[attribute], noun])
                present |= {attribute, noun}
            flags = [int(query in true) for query in range(len(labels))]
            hard = []
            for attributes, noun in labels:
                has_a_word = not present.isdisjoint({*attributes, noun})
                hard.append(int(has_a_word))
            data.append([file, annotation, flags, hard])
        path = write_json(folder / "cola_single.json", {"labels": labels, "data": data})
        subsets = {"seen": ["red cube", "red cone"], "unseen": ["blue cube"]}
        seen = write_json(folder / "seen.json", subsets)
        return cls(path, str(folder), seen=seen)

    @override
    def read(self) -> list[QueryImage]:
        queries = self._queries
        rows = torch.arange(len(queries.images))
        if not self.standard:  # an image that no metric ranks needs no encoding
            is_ranked = queries.ranked.any(dim=1)
            rows = rows[is_ranked]
        return [QueryImage(queries.images[i], i) for i in rows.tolist()]

    @cached_property
    def _queries(self) -> Queries:
        """The queries with all images."""
        return read_queries(Path(self.path), Path(self.images))

    @override
    def arrange(self, items: Sequence[QueryImage]) -> QueryItems:
        images, rows = zip(*items, strict=True)
        queries = replace(self._queries.of(rows), images=images)  # perhaps as stored
        if not (queries.labels & queries.hard).any():
            raise UserError(
                f"expected queries with a true image in their hard set in {self.path}, got none "
                f"among {len(items)} images: raise `limit`, or download the file again"
            )
        subsets = {}
        if self.seen is not None:
            for part, members in read_subsets(Path(self.seen), queries.texts).items():
                subsets[f"_{part}"] = members
        stated = queries.attributes[queries.attributes >= 0]
        for number in stated.unique().tolist():
            subsets[f"/attributes={number}"] = queries.attributes == number
        texts = spelled(queries.texts) if self.strict else queries.texts
        # A joint model pays for each pair, so it scores only those that a metric ranks.
        pairs = None if self.standard else queries.ranked.nonzero()
        return QueryItems(
            images=queries.images,
            texts=texts,
            pairs=pairs,
            clusters=torch.arange(len(queries.texts)),
            compared=(),
            queries=queries,
            subsets=subsets,
        )

    @override
    def evaluate(self, scores: PairScores) -> Result:
        queries = self.items.queries
        values = self._in_columns(scores)
        precision = self._precision(values)
        metrics = {"map": _mean(precision)}
        for part, members in self.items.subsets.items():
            if (members & precision.counted).any():
                metrics[f"map{part}"] = _mean(precision, members)
        if self.standard:
            every_image = torch.ones_like(queries.hard)
            standard = class_average_precision(values, queries.labels, every_image)
            metrics["standard_map"] = _mean(standard)
        if queries.every is not None:
            metrics |= _query_all(values, queries.labels, queries.every)
        metrics["f1"] = _f1(values, queries)
        metrics |= _left_out(precision)
        outcomes = precision.values[precision.counted]
        return self.result(metrics, outcomes, examples=self._examples(values))

    def _in_columns(self, scores: PairScores) -> Tensor:
        """The scores with a row for each image and a column for each query."""
        scores = scores.double()
        queries = self.items.queries
        if self.items.pairs is None:
            return scores
        # No metric reads the other pairs; NaN would raise if one did.
        values = torch.full(queries.labels.shape, torch.nan, dtype=torch.float64)
        values[queries.ranked] = scores  # in the order of `nonzero`, as `pairs` is
        return values

    def _precision(self, values: Float[Tensor, "N C"]) -> ClassPrecision:
        queries = self.items.queries
        treatment = "strict" if self.strict else "reference"
        return class_average_precision(values, queries.labels, queries.hard, treatment)

    @override
    def queries(self, result: Result, scores: PairScores) -> tuple[ItemRow, ...]:
        """The queries that count, each with the best images of its hard set.

        Without a true image in the hard set (convention "reference") the rank is the last.
        """
        items = self.items
        values = self._in_columns(scores)
        # Outcomes are those of the classes that count, in their order.
        counted = self._precision(values).counted.nonzero()[:, 0]
        rows = []
        for column, precision in zip(counted.tolist(), result.outcomes, strict=True):
            pool = items.queries.hard[:, column].nonzero()[:, 0]
            pool_scores = values[pool, column]
            true = items.queries.labels[pool, column]
            (rank,) = true_ranks(pool_scores[None], true[None]).tolist()
            row = query_row(
                id=f"{self.name}/{len(rows)}",
                benchmark=self.name,
                outcome=precision,
                rank=int(rank),
                images=[items.images[image] for image in pool.tolist()],
                captions=[items.texts[column]],
                scores=pool_scores,
                true=true,
                best=BEST,
            )
            rows.append(row)
        return tuple(rows)

    def _examples(self, values: Float[Tensor, "N C"]) -> tuple[Example, ...]:
        """The first queries whose best image is true, and the first whose best image is not."""
        items = self.items
        labels = items.queries.labels
        hard = items.queries.hard
        right: list[bool | None] = [None] * len(items.texts)
        for column in _answerable(items.queries):
            pool = hard[:, column]
            pool_scores = values[pool, column]
            # A true image that a false one ties with is not retrieved.
            is_best = pool_scores == pool_scores.max()
            true = labels[pool, column]
            right[column] = bool(true[is_best].all())

        def show(column: int) -> Example:
            pool = hard[:, column].nonzero()[:, 0]
            return best_images(
                items,
                items.texts[column],
                pool,
                scores=values[pool, column],
                true=labels[pool, column],
                correct=right[column] is True,
            )

        return gallery(right, lambda column: column, show)


def _mean(precision: ClassPrecision, members: Bool[Tensor, "C"] | None = None) -> MetricValue:
    counted = precision.counted
    if members is not None:
        counted = counted & members
    chance = precision.chance[counted].mean()
    return bootstrap_mean(precision.values[counted], float(chance))


def _left_out(precision: ClassPrecision) -> dict[str, MetricValue]:
    total = len(precision.values)
    return {
        "classes_without_positives": count(precision.no_positives, total),
        "classes_with_empty_hard_set": count(precision.empty_pool, total),
        "classes_without_positives_in_hard_set": count(precision.none_in_pool, total),
    }


def _query_all(
    values: Float[Tensor, "N C"], labels: Bool[Tensor, "N C"], every: Bool[Tensor, "N C"]
) -> dict[str, MetricValue]:
    """Average precision and mean ranks among the images that have all words of the query."""
    pool = every | labels
    precision = class_average_precision(values, labels, pool)
    metrics = {"query_all_map": _mean(precision)}
    ranks_of_true = []
    ranks_of_distractors = []
    expected_ranks = []  # what random scores give both
    for column in range(labels.shape[1]):
        ranked = pool[:, column]
        positives = labels[ranked, column]
        # Without a true image or a distractor there is no rank to compare with.
        if not positives.any() or positives.all():
            continue
        true, distractor = mean_ranks(values[ranked, column], positives)
        ranks_of_true.append(true)
        ranks_of_distractors.append(distractor)
        expected_ranks.append((len(positives) + 1) / 2)
    if ranks_of_true:
        # Chance is the same for both: random scores rank a true image as they rank any.
        true = torch.tensor(ranks_of_true, dtype=torch.float64)
        distractor = torch.tensor(ranks_of_distractors, dtype=torch.float64)
        expected = torch.tensor(expected_ranks, dtype=torch.float64)
        chance = float(expected.mean())
        metrics["mean_rank_true"] = bootstrap_mean(
            true, chance, higher_is_better=False, unit="rank"
        )
        metrics["mean_rank_distractor"] = bootstrap_mean(distractor, chance, unit="rank")
    return metrics


def _answerable(queries: Queries) -> list[int]:
    """The queries with a true image in their hard set."""
    has_positive = (queries.labels & queries.hard).any(dim=0)
    return has_positive.nonzero().flatten().tolist()


def _f1(values: Float[Tensor, "N C"], queries: Queries) -> MetricValue:
    scores = []
    chances = []
    for column in _answerable(queries):
        pool = queries.hard[:, column]
        positives = queries.labels[pool, column]
        f1 = f1_at_positives(values[pool, column], positives)
        scores.append(f1)
        # Random scores hit as often as images of the pool are true.
        chances.append(float(positives.double().mean()))
    mean_chance = sum(chances) / len(chances)
    return bootstrap_mean(torch.tensor(scores, dtype=torch.float64), mean_chance)
