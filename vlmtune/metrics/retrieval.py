"""Retrieval ranks among images and captions, both ways; a tie is lost unless `ties` is "first".

In: a matrix of scores and its true pairs. Out: the rank of each query. Never: a copy of the whole
matrix.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.metrics.ranking import comparable

CHUNK = 2**20  # scores compared at a time, so that they stay in the processor's cache


def bank_ranks(
    scores: Float[Tensor, "N M"],
    true: Int[Tensor, "P 2"],
    ties: Literal["wrong", "first"] = "wrong",
) -> tuple[Int[Tensor, "N"], Int[Tensor, "M"]]:
    r"""Rank of the best true caption of each image, and of the best true image of each caption.

    A query is a hit at K if its rank is at most K: if any true partner is among the K best. With
    the best true score b, the rank is $1 + |\{j \text{ false} : s_j \ge b\}|$ (`ties="wrong"`), or
    $1 + |\{j : s_j > b\}| + |\{j < t : s_j = b\}|$ where t is the first true partner that scores b
    (`ties="first"`, the result of a stable sort).

    The matrix is read in chunks.

    Args:
        scores: Scores of N images and M captions.
        true: The distinct pairs (image, caption) that are true.
        ties: How a false partner ranks that ties with the best true one.

    Example:
        >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.6, 0.7, 0.7]])
        >>> true = torch.tensor([[0, 0], [0, 1], [1, 2]])
        >>> bank_ranks(scores, true)
        (tensor([1, 2]), tensor([1, 2, 1]))
        >>> bank_ranks(scores, true, "first")[0]  # caption 1 comes before caption 2
        tensor([1, 2])
    """
    by_image = _query_ranks("image", scores, true, ties)
    by_caption = _query_ranks("caption", scores.T, true.flip(1), ties)
    return by_image, by_caption


def _query_ranks(
    query_kind: str, scores: Float[Tensor, "N M"], true: Int[Tensor, "P 2"], ties: str
) -> Int[Tensor, "N"]:
    """The rank of the best true partner of each row."""
    n, m = scores.shape
    query, partner = true.unbind(dim=1)
    # A query without a partner would rank last, and nobody would notice.
    paired = len(query.unique())
    if paired != n:
        raise UserError(
            f"expected a true partner for each of {n} {query_kind}s, got one for {paired}: check "
            "the file"
        )
    true_scores = comparable(scores[query, partner])
    lowest = true_scores.new_full((n,), -torch.inf)
    best = lowest.scatter_reduce(0, query, true_scores, "amax")
    is_best = true_scores == best[query]
    # Only a true partner with the best score can be the first one that has it.
    position = torch.where(is_best, partner, m)
    last = partner.new_full((n,), m)
    first = last.scatter_reduce(0, query, position, "amin")
    ranks = torch.ones(n, dtype=torch.int64)
    if ties == "wrong":
        # The counts below include the true partners that score the best true score.
        ranks -= torch.bincount(query[is_best], minlength=n)
    candidates = torch.arange(m)
    rows = max(1, CHUNK // m)
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        chunk = comparable(scores[part])
        threshold = best[part, None]
        before = chunk >= threshold
        if ties == "first":  # of equal scores the first in the order of the file comes first
            earlier = candidates < first[part, None]
            before &= (chunk > threshold) | earlier
        ranks[part] += before.sum(dim=1)
    return ranks


def hit_chance(partners: Int[Tensor, "n"], candidates: int, k: int) -> Float[Tensor, "n"]:
    r"""How often random scores put a true partner among the k best, for n queries.

    $1 - \binom{C - t}{k} / \binom{C}{k}$ for t true ones among C candidates.

    Example:
        >>> hit_chance(torch.tensor([1, 5]), 5000, 1)
        tensor([0.0002, 0.0010], dtype=torch.float64)
        >>> hit_chance(torch.tensor([2]), 3, 2).item()
        1.0
    """
    missed = torch.ones(len(partners), dtype=torch.float64)
    # Binomials of many candidates overflow, so the quotient is a product of the k draws.
    for i in range(min(k, candidates)):
        left = candidates - i
        false_left = (left - partners).clamp(min=0)
        missed *= false_left.double() / left
    return 1 - missed
