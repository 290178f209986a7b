"""The ranking rule: recall at K from image to caption and from caption to image, among all of them.

In: `CaptionedImage`s from a reader. Out: recalls and median ranks both ways. Never: files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from vlmtune.benchmarks.base import Benchmark, gallery
from vlmtune.benchmarks.items import ComparedItem, Items, numbered
from vlmtune.benchmarks.queries import Query, shown
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import recall_at
from vlmtune.metrics.retrieval import bank_ranks, hit_chance
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
        return float(hit_chance(self.partners, self.candidates, k).mean())


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

    folds: Annotated[int, Field(ge=2)] | None = field(default=None, kw_only=True)

    @override
    def arrange(self, items: Sequence[CaptionedImage]) -> RankingItems:
        captions = list(chain.from_iterable(item.captions for item in items))
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
        several = torch.bincount(distinct[:, 0], minlength=len(texts)) > 1
        comparisons = []
        shared = several[columns].tolist()
        for owner, text, is_shared in zip(owners.tolist(), captions, shared, strict=True):
            false = (text,) if is_shared else ()  # a caption of two images is also a wrong one
            comparisons.append(ComparedItem((items[owner].image,), (text,), false))
        return RankingItems(
            images=tuple(item.image for item in items),
            texts=texts,
            pairs=None,
            clusters=owners,
            compared=tuple(comparisons),
            columns=columns,
            owners=owners,
        )

    @override
    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        scores = scores.detach().cpu()
        items = self.items
        sides = self._ranked(scores, 0, len(items.images))
        metrics: dict[str, MetricValue] = {}
        for key, side in sides.items():
            for k in CUTS:
                metrics[f"{key}_recall@{k}"] = cluster_robust_mean(
                    side.hits(k), side.clusters, side.chance(k)
                )
        recalls = list(metrics.values())
        mean = sum(metric.value for metric in recalls) / len(recalls)
        chance = sum(metric.chance or 0.0 for metric in recalls) / len(recalls)
        metrics["mean_recall"] = MetricValue(mean, len(recalls), chance)
        for key, side in sides.items():
            middle = side.ranks.double().quantile(0.5)
            if not self.strict:  # as published scripts round it
                middle = middle.floor()
            metrics[f"{key}_median_rank"] = MetricValue(
                float(middle), len(side.ranks), higher_is_better=False, unit="rank"
            )
        if self.folds is not None:
            metrics |= self._in_folds(scores, self.folds)
        hits = sides[TO_IMAGE].hits(1)
        return self.result(metrics, hits, items.owners, examples=self._examples(scores, hits))

    def _ranked(self, scores: Float[Tensor, "N M"], first: int, last: int) -> dict[str, Recalls]:
        """Ranks both ways among the images from `first` up to `last` and their captions."""
        items, strict = self.items, self.strict
        inside = (items.owners >= first) & (items.owners < last)
        # Images of the part are numbered from 0, as the rows of its scores are.
        owners = items.owners[inside] - first
        columns = items.columns[inside]
        # In the reference convention a repeated caption is a candidate of its own.
        used = columns
        positions = torch.arange(len(columns))
        if strict:
            used, positions = columns.unique(return_inverse=True)
        rows = scores[first:last]
        # A copy of a large matrix only where columns differ.
        if not used.equal(torch.arange(rows.shape[1])):
            rows = rows[:, used]
        true = torch.stack([owners, positions], dim=1).unique(dim=0)
        ties = "wrong" if strict else "first"
        by_image, by_text = bank_ranks(rows, true, ties)
        images = torch.bincount(true[:, 0])
        texts = torch.bincount(true[:, 1])
        return {
            TO_TEXT: Recalls(by_image, images, len(used), torch.arange(len(images))),
            TO_IMAGE: Recalls(by_text[positions], texts[positions], len(images), owners),
        }

    def _in_folds(self, scores: Float[Tensor, "N M"], folds: int) -> dict[str, MetricValue]:
        """The recalls again, as means over folds that are ranked by themselves."""
        n = scores.shape[0]
        bounds = [fold * n // folds for fold in range(folds + 1)]
        parts = [self._ranked(scores, first, last) for first, last in pairwise(bounds)]
        metrics = {}
        for key in (TO_TEXT, TO_IMAGE):
            sides = [part[key] for part in parts]
            sizes = torch.tensor([len(side.ranks) for side in sides])
            fold = torch.arange(folds).repeat_interleave(sizes)
            # Within a fold clusters count from 0.
            clusters = torch.cat([side.clusters for side in sides])
            clusters += torch.tensor(bounds)[fold]
            for k in CUTS:
                hits = torch.cat([side.hits(k) for side in sides])
                chance = sum(side.chance(k) for side in sides) / folds
                mean = macro_mean(hits, fold, clusters, chance)
                metrics[f"{key}_recall@{k}/{folds} folds"] = mean
        return metrics

    @override
    def queries(self, result: Result, scores: Float[Tensor, "N M"]) -> tuple[Query, ...]:
        """The captions in the order of the file, then the images, as the part "image_to_text"."""
        items = self.items
        images = torch.arange(len(self.items.images))
        sides = self._ranked(scores, 0, len(images))
        true = torch.zeros(items.shape, dtype=torch.bool)
        true[items.owners, items.columns] = True
        queries = []
        for i, rank in enumerate(sides[TO_IMAGE].ranks.tolist()):
            column = int(items.columns[i])
            # In the reference convention a caption is true of its own image alone.
            is_true = true[:, column] if self.strict else images == items.owners[i]
            some = shown(scores[:, column], is_true)
            images_shown = tuple(items.images[k] for k in some.positions)
            caption = (items.texts[column],)
            queries.append(Query("", result.outcomes[i], rank, images_shown, caption, some))
        for i, rank in enumerate(sides[TO_TEXT].ranks.tolist()):
            some = shown(scores[i], true[i])
            captions = tuple(items.texts[k] for k in some.positions)
            image = (items.images[i],)
            queries.append(Query(TO_TEXT, float(rank == 1), rank, image, captions, some))
        return tuple(queries)

    def _examples(
        self, scores: Float[Tensor, "N M"], hits: Float[Tensor, "C"]
    ) -> tuple[Example, ...]:
        """The first captions whose image is found and the first whose image is not, by image."""
        items = self.items

        def show(caption: int) -> Example:
            column = int(items.columns[caption])
            true = torch.zeros(len(items.images), dtype=torch.bool)
            true[items.owners[items.columns == column]] = True
            images = torch.arange(len(true))
            values = scores[:, column]
            return best_images(items, items.texts[column], images, values, true, hits[caption] == 1)

        return gallery((hits == 1).tolist(), lambda i: int(items.owners[i]), show)


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
    return Example(
        query=query,
        images=tuple(items.images[i] for i in images[best].tolist()),
        scores=tuple(scores[best].tolist()),
        true=tuple(true[best].tolist()),
        correct=bool(correct),
    )
