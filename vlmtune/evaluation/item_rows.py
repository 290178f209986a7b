"""The items of a benchmark with their scores, one by one.

In: a benchmark, its result, and the scores it saw. Out: a row for each item. Never: a new score.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlmtune.benchmarks.base import Benchmark
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

    def __call__(self, *images_texts_pairs: Any) -> Tensor:
        """Scores as the scorer does."""
        scores = self._scorer(*images_texts_pairs)
        self.scores = torch.as_tensor(scores)  # of the last call alone
        return self.scores


class EmbeddingRecorder(Recorder):
    """The same for a scorer that also embeds."""

    def __init__(self, scorer: Any) -> None:
        super().__init__(scorer)
        self.embeds = getattr(scorer, "embeds", True)
        self.embed_images = scorer.embed_images
        self.embed_texts = scorer.embed_texts


def item_rows(
    benchmark: Benchmark[Any], result: Result, scores: Tensor | None
) -> tuple[ItemRow, ...]:
    """Returns the items in the order of `result.outcomes`, then rows of further parts.

    A ranking has a row for each query (`Benchmark.queries`). A benchmark whose items have no short
    list of images and captions, such as a classification, has rows with outcomes alone.
    """
    items = benchmark.items
    name = benchmark.name
    # A benchmark may score parts of its images in turn: the last scores are not of all items.
    if scores is not None and tuple(scores.shape) != items.shape:
        scores = None
    if scores is not None:
        queries = benchmark.queries(result, scores)
        if queries:
            return queries
    listed = items.evaluated
    if len(listed) != len(result.outcomes):
        outcomes = enumerate(result.outcomes)
        return tuple(ItemRow(f"{name}/{i}", name, outcome) for i, outcome in outcomes)
    score = _lookup(benchmark, scores)
    rows = []
    for item, outcome in zip(listed, result.outcomes, strict=True):
        captions = (*item.true, *item.false)
        scores_of_images = []
        for image in item.images:
            scores_of_image = tuple(score(image, caption) for caption in captions)
            scores_of_images.append(scores_of_image)
        row = ItemRow(
            id=f"{name}/{len(rows)}",
            benchmark=name,
            outcome=outcome,
            images=item.images,
            captions=captions,
            true=_truth(len(item.images), len(item.true), len(captions)),
            scores=tuple(scores_of_images),
        )
        rows.append(row)
    return tuple(rows)


def _truth(images: int, true: int, texts: int) -> tuple[tuple[bool, ...], ...]:
    """Which texts are true of each image of an item; its true texts come first.

    Of several images, each has at most one true text: text k is true of image k alone.

    Example:
        >>> _truth(1, 2, 3), _truth(2, 1, 2)
        (((True, True, False),), ((True, False), (False, False)))
    """
    if images == 1:
        return (tuple(text < true for text in range(texts)),)
    rows = []
    for image in range(images):
        row = tuple(text == image and text < true for text in range(texts))
        rows.append(row)
    return tuple(rows)


def _lookup(
    benchmark: Benchmark[Any], scores: Tensor | None
) -> Callable[[ImageRef, str], float | None]:
    """A function that tells the score of an image with a text; None for a pair without one."""
    if scores is None:
        return lambda image, text: None
    # Scores are by position, items by content: an image or a text may be in several items.
    values = scores.detach().cpu().to(torch.float64)
    items = benchmark.items
    rows = {image: row for row, image in enumerate(items.images)}
    columns = {text: column for column, text in enumerate(items.texts)}
    if items.pairs is None:
        return lambda image, text: float(values[rows[image], columns[text]])
    pairs = map(tuple, items.pairs.tolist())
    positions = {pair: position for position, pair in enumerate(pairs)}

    def score(image: ImageRef, text: str) -> float | None:
        # An item may compare only some of its images with its captions.
        position = positions.get((rows[image], columns[text]))
        return None if position is None else float(values[position])

    return score
