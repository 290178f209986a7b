"""The items of a benchmark with their scores, one by one.

In: a benchmark, its result, and the scores it saw. Out: a row for each item. Never: a new score.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark, Query
from vlmtune.benchmarks.pair_scorer import PairScorer
from vlmtune.results.item_row import ItemRow
from vlmtune.results.result import Result
from vlmtune.types import ImageRef


class Recorder:
    """A scorer that keeps what it returned last, for one benchmark.

    Attributes:
        scores: The scores of the last call, or None.
    """

    def __init__(self, scorer: PairScorer) -> None:
        self._scorer = scorer
        self.scores: Tensor | None = None

    def __call__(
        self,
        images: Sequence[ImageRef],
        texts: Sequence[str],
        pairs: Int[Tensor, "P 2"] | None = None,
    ) -> Float[Tensor, "P"] | Float[Tensor, "N M"]:
        """Scores as the scorer does."""
        self.scores = self._scorer(images, texts, pairs)
        return self.scores


class EmbeddingRecorder(Recorder):
    """The same for a scorer that also embeds."""

    def __init__(self, scorer: Any) -> None:
        super().__init__(scorer)
        self.embeds = getattr(scorer, "embeds", True)
        self.embed_images, self.embed_texts = scorer.embed_images, scorer.embed_texts


def item_rows(
    benchmark: Benchmark[Any], result: Result, scores: Tensor | None
) -> tuple[ItemRow, ...]:
    """Returns the items in the order of `result.outcomes`, then rows of further parts.

    A ranking has a row for each query (`Benchmark.queries`). A benchmark whose items have no short
    list of images and captions, such as a classification, has rows with outcomes alone.
    """
    items, name = benchmark.items, benchmark.name
    fits = scores is not None and tuple(scores.shape) == items.shape
    if scores is not None and fits and (queries := benchmark.queries(result, scores)):
        return _query_rows(name, queries)
    listed = items.evaluated
    if len(listed) != len(result.outcomes):
        return tuple(ItemRow(f"{name}/{i}", name, x) for i, x in enumerate(result.outcomes))
    rows = {image: i for i, image in enumerate(items.images)}
    columns = {text: j for j, text in enumerate(items.texts)}
    known: dict[tuple[int, int], int] | None = None
    if items.pairs is not None:
        known = {(i, j): k for k, (i, j) in enumerate(items.pairs.tolist())}
    values = None if scores is None or not fits else scores.detach().cpu().to(torch.float64)

    def score(image: ImageRef, text: str) -> float | None:
        pair = rows[image], columns[text]
        if values is None or (known is not None and pair not in known):
            return None
        return float(values[pair] if known is None else values[known[pair]])

    out = []
    for i, (one, outcome) in enumerate(zip(listed, result.outcomes, strict=True)):
        texts = (*one.true, *one.false)
        paired = len(one.images) == len(one.true) > 1
        grid = list(product(range(len(one.images)), range(len(texts))))
        true = [j == k if paired else k < len(one.true) for j, k in grid]
        numbers = [score(one.images[j], texts[k]) for j, k in grid]
        out.append(
            ItemRow(
                f"{name}/{i}",
                name,
                outcome,
                one.images,
                texts,
                _in_rows(true, len(texts)),
                _in_rows(numbers, len(texts)),
            )
        )
    return tuple(out)


def _query_rows(name: str, queries: Sequence[Query]) -> tuple[ItemRow, ...]:
    """A row for each query; `<name>/<part>` has those that the primary metric does not count."""
    counts: Counter[str] = Counter()
    rows = []
    for one in queries:
        part, width = f"{name}/{one.part}".rstrip("/"), len(one.captions)
        rows.append(
            ItemRow(
                f"{part}/{counts[part]}",
                part,
                one.outcome,
                one.images,
                one.captions,
                _in_rows(one.shown.true, width),
                _in_rows(one.shown.scores, width),
                one.rank,
            )
        )
        counts[part] += 1
    return tuple(rows)


def _in_rows(values: Sequence[Any], width: int) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(values[i : i + width]) for i in range(0, len(values), width))
