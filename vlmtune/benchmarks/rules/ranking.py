"""The ranking rule: recall at K from image to caption and from caption to image, among all of them.

In: `CaptionedImage`s from a reader. Out: recalls and median ranks both ways. Never: files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from jaxtyping import Bool, Float, Int
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, gallery
from vlmtune.benchmarks.items import ComparedItem, Items, numbered
from vlmtune.benchmarks.queries import query_row
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import recall_at
from vlmtune.metrics.retrieval import bank_ranks, hit_chance
from vlmtune.results.item_row import ItemRow
from vlmtune.results.metric_value import MetricValue
from vlmtune.results.result import Example, Result
from vlmtune.types import ImageRef

CUTS = (1, 5, 10)
TO_TEXT, TO_IMAGE = "image_to_text", "text_to_image"
BEST = 5  # images of a query in the gallery


@dataclass(frozen=True)
class CaptionedImage:
    """One item: an image with its captions."""

    image: ImageRef
    captions: tuple[str, ...]


@dataclass(frozen=True)
class RankingItems(Items):
    """N images with C captions, of which M are distinct; items are the captions."""

    columns: Int[Tensor, "C"]  # number of the distinct caption that each caption is
    owners: Int[Tensor, "C"]  # the image of each caption, in ascending order

    @property
    @override
    def true(self) -> Int[Tensor, "C 2"]:
        return torch.stack([self.owners, self.columns], dim=1)


@dataclass(frozen=True)
class Recalls:
    """Rank of the best of the true partners of each of n queries."""

    ranks: Int[Tensor, "n"]
    partners: Int[Tensor, "n"]
    candidates: int
    clusters: Int[Tensor, "n"]

    def hits(self, k: int) -> Float[Tensor, "n"]:
        """1 for each query that is hit at k."""
        return recall_at(self.ranks, k).double()

    def chance(self, k: int) -> float:
        """The fraction of hits of random scores."""
        chances = hit_chance(self.partners, self.candidates, k)
        return float(chances.mean())


class Ranking(Benchmark[RankingItems]):
    """Recall at 1, 5 and 10 from image to caption and from caption to image.

    An image is hit at K where any of its captions is among the K best of all captions, a caption
    where its image is among the K best images: a hit rate, not the fraction of true ones found.

    - `image_to_text_recall@1`, ... (TR): mean over images; `text_to_image_recall@1`, ... (IR): mean
      over captions, however often one is written. `mean_recall`: the mean of the six.
    - `image_to_text_median_rank`, `text_to_image_median_rank`: of the best true partner.
    - With `folds`, each recall again as `.../<folds> folds`.

    Intervals count images, with their captions.

    Conventions:

    - "strict": a false partner that scores what the best true one does comes before it. A caption
      of several images is one candidate, true of each of them.
    - "reference", as common scripts do: of equal scores the first in the order of the file comes
      first (scripts leave it to their sort). A caption is true of its own image alone, also where
      another has the same words. Medians are rounded down.

    Args:
        folds: Also report the mean recall over so many parts of the items, in the order of the
            file, each ranked by itself. `limit` counts images, with their captions.
    """

    primary_metric: ClassVar[str] = f"{TO_IMAGE}_recall@1"

    folds: Annotated[int, Ge(2)] | None = field(default=None, kw_only=True)

    @override
    def arrange(self, items: Sequence[CaptionedImage]) -> RankingItems:
        captions: list[str] = []
        for item in items:
            captions += item.captions
        texts, columns = numbered(captions)
        least = 2 * (self.folds or 1)
        if len(items) < least or len(texts) < 2:
            raise UserError(
                f"expected at least {least} images and 2 captions for {self.name}, got "
                f"{len(items)} and {len(texts)}: take more images"
            )
        counts = torch.tensor([len(item.captions) for item in items])
        owners = torch.arange(len(items)).repeat_interleave(counts)
        # An image may have one caption twice, which does not make it the caption of two images.
        distinct = torch.stack([columns, owners], dim=1).unique(dim=0)
        images_of_text = torch.bincount(distinct[:, 0], minlength=len(texts))
        is_shared = images_of_text[columns] > 1
        comparisons = []
        of_captions = zip(owners.tolist(), captions, is_shared.tolist(), strict=True)
        for owner, text, shared in of_captions:
            image = items[owner].image
            # In the reference convention a caption of two images is also a wrong one.
            is_wrong_too = shared and not self.strict
            false = (text,) if is_wrong_too else ()
            comparisons.append(ComparedItem((image,), (text,), false))
        images = [item.image for item in items]
        return RankingItems(
            images=tuple(images),
            texts=texts,
            pairs=None,
            clusters=owners,
            compared=tuple(comparisons),
            columns=columns,
            owners=owners,
        )

    @override
    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        items = self.items
        sides = self._ranked(scores, 0, len(items.images))
        metrics: dict[str, MetricValue] = {}
        for key, side in sides.items():
            for k in CUTS:
                metric = cluster_robust_mean(side.hits(k), side.clusters, side.chance(k))
                metrics[f"{key}_recall@{k}"] = metric
        recalls = list(metrics.values())
        mean = sum(metric.value for metric in recalls) / len(recalls)
        chance = sum(metric.chance or 0.0 for metric in recalls) / len(recalls)
        metrics["mean_recall"] = MetricValue(mean, len(recalls), chance)
        for key, side in sides.items():
            median = side.ranks.double().quantile(0.5)  # of an even number the mean of both
            if not self.strict:  # as published scripts round it
                median = median.floor()
            metrics[f"{key}_median_rank"] = MetricValue(
                float(median), len(side.ranks), higher_is_better=False, unit="rank"
            )
        if self.folds is not None:
            metrics |= self._in_folds(scores, self.folds)
        hits = sides[TO_IMAGE].hits(1)
        examples = self._examples(scores, hits)
        return self.result(metrics, hits, items.owners, examples=examples)

    def _ranked(self, scores: Float[Tensor, "N M"], first: int, last: int) -> dict[str, Recalls]:
        """Ranks both ways among the images from `first` up to `last` and their captions."""
        items = self.items
        inside = (items.owners >= first) & (items.owners < last)
        # Images of the part are numbered from 0, as the rows of its scores are.
        owners = items.owners[inside] - first
        columns = items.columns[inside]
        # In the reference convention a repeated caption is a candidate of its own.
        candidates = columns
        positions = torch.arange(len(columns))
        if self.strict:
            candidates, positions = columns.unique(return_inverse=True)
        values = scores[first:last]
        # A copy of a large matrix only where columns differ.
        every_column = torch.arange(values.shape[1])
        if not candidates.equal(every_column):
            values = values[:, candidates]
        pairs = torch.stack([owners, positions], dim=1)
        true = pairs.unique(dim=0)  # an image may have one caption twice
        ties = "wrong" if self.strict else "first"
        image_ranks, text_ranks = bank_ranks(values, true, ties)
        texts_of_image = torch.bincount(true[:, 0])
        images_of_text = torch.bincount(true[:, 1])
        # An image is a query once, a caption as often as it is written.
        return {
            TO_TEXT: Recalls(
                ranks=image_ranks,
                partners=texts_of_image,
                candidates=len(candidates),
                clusters=torch.arange(len(texts_of_image)),
            ),
            TO_IMAGE: Recalls(
                ranks=text_ranks[positions],
                partners=images_of_text[positions],
                candidates=len(texts_of_image),
                clusters=owners,
            ),
        }

    def _in_folds(self, scores: Float[Tensor, "N M"], folds: int) -> dict[str, MetricValue]:
        """The recalls again, as means over folds that are ranked by themselves."""
        # Consecutive images, as scripts cut COCO's 5,000 into five thousands.
        count = scores.shape[0]
        bounds = [fold * count // folds for fold in range(folds + 1)]
        parts = [self._ranked(scores, first, last) for first, last in pairwise(bounds)]
        metrics = {}
        for key in (TO_TEXT, TO_IMAGE):
            sides = [part[key] for part in parts]
            sizes = torch.tensor([len(side.ranks) for side in sides])
            fold = torch.arange(folds).repeat_interleave(sizes)
            # Within a fold clusters count from 0; those of the next fold come after.
            clusters = torch.cat([side.clusters for side in sides])
            first_of_fold = torch.tensor(bounds)[fold]
            clusters += first_of_fold
            for k in CUTS:
                hits = torch.cat([side.hits(k) for side in sides])
                chance = sum(side.chance(k) for side in sides) / folds
                mean = macro_mean(hits, fold, clusters, chance)
                metrics[f"{key}_recall@{k}/{folds} folds"] = mean
        return metrics

    @override
    def queries(self, result: Result, scores: Float[Tensor, "N M"]) -> tuple[ItemRow, ...]:
        """The captions in the order of the file, then the images, as the part "image_to_text"."""
        items = self.items
        sides = self._ranked(scores, 0, len(items.images))
        # Here a caption of several images is true of each, as it is one column of the scores.
        truth = items.truth
        image_numbers = torch.arange(len(items.images))
        rows = []
        for number, rank in enumerate(sides[TO_IMAGE].ranks.tolist()):
            column = int(items.columns[number])
            true = truth[:, column]
            if not self.strict:
                # In the reference convention a caption is true of its own image alone.
                true = image_numbers == items.owners[number]
            row = query_row(
                id=f"{self.name}/{number}",
                benchmark=self.name,
                outcome=result.outcomes[number],
                rank=rank,
                images=items.images,
                captions=[items.texts[column]],
                scores=scores[:, column],
                true=true,
            )
            rows.append(row)
        part = f"{self.name}/{TO_TEXT}"
        for number, rank in enumerate(sides[TO_TEXT].ranks.tolist()):
            row = query_row(
                id=f"{part}/{number}",
                benchmark=part,
                outcome=float(rank == 1),
                rank=rank,
                images=[items.images[number]],
                captions=items.texts,
                scores=scores[number],
                true=truth[number],
            )
            rows.append(row)
        return tuple(rows)

    def _examples(
        self, scores: Float[Tensor, "N M"], hits: Float[Tensor, "C"]
    ) -> tuple[Example, ...]:
        """The first captions whose image is found and the first whose image is not, by image."""
        items = self.items
        is_hit = hits == 1
        images = torch.arange(len(items.images))

        def show(caption: int) -> Example:
            column = items.columns[caption]
            # The same words may be the caption of several images. Few captions are shown, so the
            # truth of all pairs is not needed.
            has_these_words = items.columns == column
            true = torch.zeros(len(images), dtype=torch.bool)
            true[items.owners[has_these_words]] = True
            query = items.texts[int(column)]
            return best_images(items, query, images, scores[:, column], true, is_hit[caption])

        return gallery(is_hit.tolist(), lambda caption: int(items.owners[caption]), show)


def best_images(
    items: Items,
    query: str,
    images: Int[Tensor, "p"],
    scores: Float[Tensor, "p"],
    true: Bool[Tensor, "p"],
    correct: bool | Bool[Tensor, ""],
) -> Example:
    """Shows the best of some images for a query, the true ones marked."""
    best = scores.argsort(descending=True, stable=True)[:BEST]
    shown_images = [items.images[number] for number in images[best].tolist()]
    return Example(
        query=query,
        images=tuple(shown_images),
        scores=tuple(scores[best].tolist()),
        true=tuple(true[best].tolist()),
        correct=bool(correct),
    )
