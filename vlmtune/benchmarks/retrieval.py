"""Retrieval among all images and captions of a split: Flickr30K and COCO.

Files: Karpathy's JSON (see `vlmtune.benchmarks.karpathy_files`) and the images. The test split of
Flickr30K has 1,000 images and 5,000 captions, COCO's 5,000 and 25,010 (some images have more than
five). Source: Karpathy and Fei-Fei 2015, section 4.1.
"""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Convention, check_images
from vlmtune.benchmarks.karpathy_files import read_split
from vlmtune.benchmarks.repeats import Item
from vlmtune.benchmarks.sampling import check_limit, sample
from vlmtune.errors import UserError
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import recall_at
from vlmtune.metrics.retrieval import bank_ranks, hit_chance
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example, Result
from vlmtune.types import ImageRef

CUTS = (1, 5, 10)
TO_TEXT, TO_IMAGE = "image_to_text", "text_to_image"
FIRST = 5  # captions of an image that the reference convention ranks
SHOWN, BEST = 4, 5  # captions of each kind in the gallery, and images for each


@dataclass(frozen=True)
class _Bank:
    """N images and C captions.

    Attributes:
        images: The images.
        texts: The M distinct captions.
        columns: Which of the M each of the C captions is.
        owners: The image of each caption, in ascending order.
    """

    images: tuple[ImageRef, ...]
    texts: tuple[str, ...]
    columns: Int[Tensor, "C"]
    owners: Int[Tensor, "C"]


@dataclass(frozen=True)
class _Ranks:
    """Rank of the best of the true partners of each of n queries."""

    ranks: Int[Tensor, "n"]
    partners: Int[Tensor, "n"]
    candidates: int
    clusters: Int[Tensor, "n"]

    def hits(self, k: int) -> Float[Tensor, "n"]:
        """1 for each query that is hit at k."""
        return recall_at(self.ranks, k).double()

    def chance(self, k: int) -> float:
        """The share of hits of random scores."""
        return float(hit_chance(self.partners, self.candidates, k).mean())


class Retrieval(Benchmark):
    """Recall at 1, 5 and 10 from image to caption and from caption to image.

    An image is hit at K where any of its captions is among the K best of all captions, a caption
    where its image is among the K best images: a hit rate, not the share of true ones found.

    - `image_to_text_recall@1`, ... (TR): mean over images; `text_to_image_recall@1`, ... (IR): mean
      over captions, however often one is written. `mean_recall`: the mean of the six.
    - `image_to_text_median_rank`, `text_to_image_median_rank`: of the best true partner.
    - With `folds`, each recall again as `.../<folds> folds`: the mean over so many parts of the
      split, in the order of the file, each ranked by itself. COCO's "1K" is the mean over 5 folds
      of its 5,000 test images, "5K" are the numbers without folds.

    Intervals resample images, with their captions.

    Conventions:

    - "strict": a false partner that scores what the best true one does comes before it. Every
      caption counts. One that several images have is one candidate, true of each of them.
    - "reference", as common scripts do: of equal scores the first in the order of the file comes
      first (scripts leave it to their sort). The first five captions of an image count, and each is
      true of its own image alone, also where another has the same words. Medians are rounded down.

    Args:
        path: The JSON.
        images: The folder with the images.
        name: Name in reports.
        split: Which part is ranked.
        folds: In how many parts the recalls are also measured; None for none.
        convention: See above.
        limit: Rank at most so many images, with their captions. Recalls rise as candidates get
            fewer, and so does their chance.
        seed: Draw them at random with this seed; None takes the first ones.

    Raises:
        UserError: `limit` or `folds` is too small, or the convention is unknown.
    """

    version: ClassVar[str] = "1"
    kind: ClassVar[Literal["compositional", "retained"]] = "retained"
    primary: str = f"{TO_IMAGE}_recall@1"
    citation: ClassVar[str] = "Karpathy and Fei-Fei 2015, section 4.1 (Recall@K, median rank)"
    source: ClassVar[str] = (
        "cs.stanford.edu/people/karpathy/deepimagesent (the JSON), cocodataset.org and "
        "shannon.cs.illinois.edu/DenotationGraph (the images)"
    )

    def __init__(
        self,
        path: str,
        images: str,
        name: str = "retrieval",
        split: str = "test",
        folds: int | None = None,
        convention: Convention = "strict",
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        if convention not in ("strict", "reference"):
            raise UserError(
                f"expected the convention 'strict' or 'reference', got {convention!r}: name one"
            )
        if folds is not None and folds < 2:
            raise UserError(f"expected at least 2 folds, got {folds}: leave them out for none")
        check_limit(limit)
        self.path, self.folder, self.name = Path(path), Path(images), name
        self.split, self.folds = split, folds
        self.convention: Convention = convention
        self.limit, self.seed = limit, seed
        self._items: _Bank | None = None

    @classmethod
    def fixture(cls, folder: Path) -> "Retrieval":
        """Four test images in COCO's layout; two share a caption, one has two, another six."""
        (folder / "val2014").mkdir()
        captions = (
            ["a dog runs", "a dog on grass"],
            ["a cat sleeps", "a cat", "two cats", "cats on a bed", "a bed", "a bed with cats"],
            ["a dog runs", "a dog in snow", "a white dog"],
            ["a red car", "a car", "a parked car"],
            ["not in the test split"],
        )
        images = []
        for i, raws in enumerate(captions):
            file = f"COCO_val2014_{i:012d}.png"
            Image.new("RGB", (8, 8), (50 * i, 9, 200 - 40 * i)).save(folder / "val2014" / file)
            split = "test" if i < 4 else "val"
            sentences = [{"raw": raw, "imgid": i} for raw in raws]
            row = {"filepath": "val2014", "filename": file, "split": split, "sentences": sentences}
            images.append({"imgid": i, "cocoid": i, **row})
        path = folder / "dataset_coco.json"
        path.write_text(json.dumps({"images": images, "dataset": "coco"}), encoding="utf-8")
        return cls(str(path), str(folder), folds=2)

    def load(self) -> None:
        """Reads the JSON and finds the images; calling it again does nothing.

        Raises:
            UserError: The file is not what it should be, has no such split or too few images or
                captions in it, or an image is missing.
        """
        if self._items is None:
            items = self._read()
            check_images(items.images, self)
            self._items = items

    def images(self) -> tuple[ImageRef, ...]:
        """The images of the split, in the order of the file."""
        return self._bank().images

    def texts(self) -> tuple[str, ...]:
        """The distinct captions, in the order of the file."""
        return self._bank().texts

    def compared_items(self) -> tuple[Item, ...]:
        """Each caption with its image; wrong where another image has the same words."""
        bank = self._bank()
        own = torch.stack([bank.columns, bank.owners], dim=1).unique(dim=0)
        several = torch.bincount(own[:, 0], minlength=len(bank.texts)) > 1
        found = zip(bank.owners.tolist(), bank.columns.tolist(), strict=True)
        captions = [(bank.images[i], (bank.texts[j],), bool(several[j])) for i, j in found]
        return tuple(Item((image,), own, own if wrong else ()) for image, own, wrong in captions)

    def pairs(self) -> None:
        """All pairs."""
        return

    def truth(self) -> Bool[Tensor, "N M"]:
        """The caption is written for the image."""
        bank = self._bank()
        truth = torch.zeros(len(bank.images), len(bank.texts), dtype=torch.bool)
        truth[bank.owners, bank.columns] = True
        return truth

    def evaluate(self, scores: Float[Tensor, "N M"]) -> Result:
        """Ranks captions for images and images for captions."""
        scores = scores.detach().cpu()
        bank = self._bank()
        sides = self._ranked(scores, 0, len(bank.images))
        metrics: dict[str, MetricValue] = {}
        for key, side in sides.items():
            for k in CUTS:
                metrics[f"{key}_recall@{k}"] = cluster_robust_mean(
                    side.hits(k), side.clusters, side.chance(k)
                )
        metrics["mean_recall"] = MetricValue(
            sum(metric.value for metric in metrics.values()) / len(metrics),
            len(metrics),
            sum(metric.chance or 0.0 for metric in metrics.values()) / len(metrics),
        )
        for key, side in sides.items():
            middle = side.ranks.double().quantile(0.5)
            middle = float(middle if self.convention == "strict" else middle.floor())
            metrics[f"{key}_median_rank"] = MetricValue(
                middle, len(side.ranks), higher_is_better=False, unit="rank"
            )
        if self.folds is not None:
            metrics |= self._in_folds(scores, self.folds)
        hits = sides[TO_IMAGE].hits(1)
        return Result(
            benchmark=self.name,
            version=self.version,
            primary=self.primary,
            metrics=metrics,
            examples=self._examples(scores, hits),
            citation=self.citation,
            convention=self.convention,
            outcomes=tuple(hits.tolist()),
            clusters=tuple(bank.owners.tolist()),
        )

    def _ranked(self, scores: Float[Tensor, "N M"], first: int, last: int) -> dict[str, _Ranks]:
        """Ranks both ways among the images from `first` up to `last` and their captions."""
        bank, strict = self._bank(), self.convention == "strict"
        own = (bank.owners >= first) & (bank.owners < last)
        owners, columns = bank.owners[own] - first, bank.columns[own]
        # By the reference convention a repeated caption is a candidate of its own.
        used, places = columns, torch.arange(len(columns))
        if strict:
            used, places = columns.unique(return_inverse=True)
        rows = scores[first:last]
        if not used.equal(torch.arange(rows.shape[1])):
            rows = rows[:, used]
        true = torch.stack([owners, places], dim=1).unique(dim=0)
        by_image, by_text = bank_ranks(rows, true, "wrong" if strict else "first")
        images, texts = torch.bincount(true[:, 0]), torch.bincount(true[:, 1])
        return {
            TO_TEXT: _Ranks(by_image, images, len(used), torch.arange(len(images))),
            TO_IMAGE: _Ranks(by_text[places], texts[places], len(images), owners),
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
            clusters = torch.cat([side.clusters for side in sides]) + torch.tensor(bounds)[fold]
            for k in CUTS:
                hits = torch.cat([side.hits(k) for side in sides])
                chance = sum(side.chance(k) for side in sides) / folds
                metrics[f"{key}_recall@{k}/{folds} folds"] = macro_mean(
                    hits, fold, clusters, chance
                )
        return metrics

    def _examples(
        self, scores: Float[Tensor, "N M"], hits: Float[Tensor, "C"]
    ) -> tuple[Example, ...]:
        """The first captions whose image is found and the first whose image is not, by image."""
        bank = self._bank()
        shown: list[Example] = []
        for correct in (True, False):
            owners: set[int] = set()
            for caption in (hits == float(correct)).nonzero().flatten().tolist():
                owner, column = int(bank.owners[caption]), int(bank.columns[caption])
                if owner in owners:
                    continue
                if len(owners) == SHOWN:
                    break
                owners.add(owner)
                values = scores[:, column]
                best = values.argsort(descending=True, stable=True)[:BEST].tolist()
                true = set(bank.owners[bank.columns == column].tolist())
                shown.append(
                    Example(
                        query=bank.texts[column],
                        images=tuple(bank.images[i] for i in best),
                        scores=tuple(float(values[i]) for i in best),
                        true=tuple(i in true for i in best),
                        correct=correct,
                    )
                )
        return tuple(shown)

    def _bank(self) -> _Bank:
        self.load()
        assert self._items is not None
        return self._items

    def _read(self) -> _Bank:
        listed = read_split(self.path, self.split)
        rows = [listed[i] for i in sample([""] * len(listed), self.limit, self.seed)]
        images = tuple(ImageRef(self.folder / file) for file, _ in rows)
        kept = None if self.convention == "strict" else FIRST
        captions = [(i, raw) for i, (_, raws) in enumerate(rows) for raw in raws[:kept]]
        column_of = {raw: j for j, raw in enumerate(dict.fromkeys(raw for _, raw in captions))}
        least = 2 * (self.folds or 1)
        if len(images) < least or len(column_of) < 2:
            raise UserError(
                f"expected at least {least} images and 2 captions in the split {self.split!r} of "
                f"{self.path}, got {len(images)} and {len(column_of)}: take more images"
            )
        columns = torch.tensor([column_of[raw] for _, raw in captions])
        return _Bank(images, tuple(column_of), columns, torch.tensor([i for i, _ in captions]))
