"""Images with candidate captions as numbers, and the ranks of the true ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.benchmarks.base import Convention
from vlmtune.benchmarks.repeats import Item
from vlmtune.metrics.cluster_robust import cluster_robust_mean, macro_mean
from vlmtune.metrics.ranking import recall_at, true_ranks
from vlmtune.metrics.value import MetricValue
from vlmtune.report.result import Example
from vlmtune.types import ImageRef

AT_ONCE = 4_000_000  # scores that are compared at a time
SHOWN = 2  # images of each kind, right and wrong, of each set-up in the gallery


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
    """Rank and score of the true candidate of each image, and place and score of its best rival.

    The true candidate is its own rival where there is no other.
    """

    ranks: Int[Tensor, "n"]
    scores: Float[Tensor, "n"]
    rivals: Int[Tensor, "n"]
    rival_scores: Float[Tensor, "n"]

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
    ties = "wrong" if convention == "strict" else "first"
    # In parts: comparisons of a bank of 10^8 scores would not fit beside it.
    rows = max(1, AT_ONCE // scores.shape[1])
    ranks, rivals = [], []
    for part, true in zip(scores.split(rows), block.true.split(rows), strict=True):
        ranks.append(true_ranks(part, true, ties))
        rivals.append(part.scatter(1, true[:, None], -torch.inf).argmax(dim=1))
    rival, true = torch.cat(rivals), block.true
    own, other = (scores.gather(1, place[:, None])[:, 0] for place in (true, rival))
    return Ranked(torch.cat(ranks), own, rival, other)


def recall(block: Block, ranked: Ranked, k: int) -> MetricValue:
    """How often the true candidate is among the first k."""
    hits = recall_at(ranked.ranks, k).double()
    return cluster_robust_mean(hits, block.clusters, min(1.0, k / block.columns.shape[1]))


def listed(
    block: Block, images: Sequence[ImageRef], texts: Sequence[str], hard: bool
) -> Iterator[Item]:
    """Each image of a set-up with its caption.

    Args:
        block: The set-up.
        images: All images.
        texts: All captions.
        hard: Whether there are two candidates, the other one being the wrong caption of the item.
    """
    own = block.columns.gather(1, block.true[:, None])[:, 0]
    other = (block.columns.sum(dim=1) - own).tolist() if hard else [None] * len(own)
    for i, j, wrong in zip(block.images.tolist(), own.tolist(), other, strict=True):
        false = () if wrong is None else (texts[int(wrong)],)
        yield Item((images[int(i)],), (texts[int(j)],), false)


def gallery(
    block: Block, ranked: Ranked, images: Sequence[ImageRef], texts: Sequence[str]
) -> Iterator[Example]:
    """The first right and wrong images of a set-up, with the caption chosen and the other.

    The other is the best false one where the choice was right, else the true one.
    """
    for correct in (True, False):
        for i in ((ranked.ranks == 1) == correct).nonzero().flatten()[:SHOWN].tolist():
            true, rival = (
                texts[int(block.columns[i, place[i]])] for place in (block.true, ranked.rivals)
            )
            query = f"{true} (not: {rival})" if correct else f"{rival} (true: {true})"
            query = query if true != rival else true  # the one candidate there is
            score = float((ranked.scores if correct else ranked.rival_scores)[i])
            yield Example(query, (images[int(block.images[i])],), (score,), (correct,), correct)


def accuracies(blocks: Sequence[Block], ranked: Sequence[Ranked]) -> dict[str, MetricValue]:
    """`accuracy` over all items and `macro_accuracy`, the mean over set-ups.

    An image of several set-ups is one cluster.
    """
    hits = torch.cat([own.hits for own in ranked])
    images = torch.cat([block.images for block in blocks])
    groups = torch.cat([torch.full((len(own.ranks),), i) for i, own in enumerate(ranked)])
    chances = torch.tensor([1 / block.columns.shape[1] for block in blocks], dtype=torch.float64)
    return {
        "accuracy": cluster_robust_mean(hits, images, float(chances[groups].mean())),
        "macro_accuracy": macro_mean(hits, groups, images, float(chances.mean())),
    }
