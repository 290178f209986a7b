"""Images with candidate captions as numbers, and the ranks of the true ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.benchmarks.base import Convention
from vlmtune.metrics.clustered import clustered_mean, macro_mean
from vlmtune.metrics.ordered import ordered_ranks
from vlmtune.metrics.ranking import recall_at, true_ranks
from vlmtune.types import Metric

AT_ONCE = 4_000_000  # scores that are compared at a time


@dataclass(frozen=True)
class Block:
    """One set-up: n images with their m candidates, and which of these is true.

    Attributes:
        name: The set-up.
        images: Numbers of the images.
        columns: Numbers of the candidates.
        true: Place of the true candidate in each row.
        clusters: Images of one number are not independent.
    """

    name: str
    images: Int[Tensor, "n"]
    columns: Int[Tensor, "n m"]
    true: Int[Tensor, "n"]
    clusters: Int[Tensor, "n"]


@dataclass(frozen=True)
class Ranked:
    """Rank and score of the true candidate of each image."""

    ranks: Int[Tensor, "n"]
    scores: Float[Tensor, "n"]

    @property
    def hits(self) -> Float[Tensor, "n"]:
        """1 where the true candidate is first, else 0."""
        return recall_at(self.ranks, 1).double()


def numbers(keys: Iterable[str], known: dict[str, int]) -> list[int]:
    """The number of each key; new ones get the next numbers.

    Example:
        >>> numbers(["b", "c", "b"], {"a": 0, "b": 1})
        [1, 2, 1]
    """
    return [known.setdefault(key, len(known)) for key in keys]


def rank(scores: Float[Tensor, "n m"], block: Block, convention: Convention) -> Ranked:
    """Ranks the true candidates; ties rank last, or by "reference" in the order of candidates."""
    rule = true_ranks if convention == "strict" else ordered_ranks
    # In parts: comparisons of a bank of 10^8 scores would not fit beside it.
    rows = max(1, AT_ONCE // scores.shape[1])
    parts = zip(scores.split(rows), block.true.split(rows), strict=True)
    ranks = torch.cat([rule(part, true) for part, true in parts])
    return Ranked(ranks, scores.gather(1, block.true[:, None])[:, 0])


def recall(block: Block, ranked: Ranked, k: int) -> Metric:
    """How often the true candidate is among the first k."""
    hits = recall_at(ranked.ranks, k).double()
    return clustered_mean(hits, block.clusters, min(1.0, k / block.columns.shape[1]))


def accuracies(blocks: Sequence[Block], ranked: Sequence[Ranked]) -> dict[str, Metric]:
    """`accuracy` over all items and `macro_accuracy`, the mean over set-ups.

    An image of several set-ups is one cluster.
    """
    hits = torch.cat([own.hits for own in ranked])
    images = torch.cat([block.images for block in blocks])
    groups = torch.cat([torch.full((len(own.ranks),), i) for i, own in enumerate(ranked)])
    chances = torch.tensor([1 / block.columns.shape[1] for block in blocks], dtype=torch.float64)
    return {
        "accuracy": clustered_mean(hits, images, float(chances[groups].mean())),
        "macro_accuracy": macro_mean(hits, groups, images, float(chances.mean())),
    }
