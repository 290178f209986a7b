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

    The matrix is read once, in chunks.

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
    true_scores = scores[true[:, 0], true[:, 1]]
    ranks, best, first = [], [], []
    for side, queries in enumerate(("images", "captions")):
        size, partners = scores.shape[side], scores.shape[1 - side]
        query, partner = true[:, side], true[:, 1 - side]
        if len(query.unique()) != size or bool(torch.isnan(true_scores).any()):
            raise UserError(
                f"expected a true partner and finite scores for each of {size} {queries}, one has "
                "none: check the file, or evaluate in fp32"
            )
        top = true_scores.new_full((size,), -torch.inf)
        top = top.scatter_reduce(0, query, true_scores, "amax")
        best.append(top)
        is_top = true_scores == top[query]
        rank = torch.ones(size, dtype=torch.int64)
        if ties == "wrong":
            # The counts below include the true partners that score the best true score.
            rank -= torch.bincount(query[is_top], minlength=size)
        ranks.append(rank)
        # Only a true partner with the best score can be the first one that has it.
        position = torch.where(is_top, partner, partners)
        start = partner.new_full((size,), partners)
        first.append(start.scatter_reduce(0, query, position, "amin"))
    counts = _counts_above(scores, (best[0], best[1]), (first[0], first[1]), ties)
    return ranks[0] + counts[0], ranks[1] + counts[1]


def _counts_above(
    scores: Float[Tensor, "N M"],
    best: tuple[Float[Tensor, "N"], Float[Tensor, "M"]],
    first: tuple[Int[Tensor, "N"], Int[Tensor, "M"]],
    ties: Literal["wrong", "first"],
) -> tuple[Int[Tensor, "N"], Int[Tensor, "M"]]:
    """How many partners rank before, or tie with, the best true one of each query."""
    n, m = scores.shape
    across = torch.zeros(n, dtype=torch.int64)
    down = torch.zeros(m, dtype=torch.int64)
    columns = torch.arange(m)
    rows = max(1, CHUNK // m)
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        chunk = comparable(scores[part])
        best_text, best_image = best[0][part, None], best[1]
        if ties == "wrong":
            before_text = chunk >= best_text
            before_image = chunk >= best_image
        else:
            # Of equal scores the first in the order of the file comes first.
            images = torch.arange(start, start + len(chunk))[:, None]
            earlier_text = columns < first[0][part, None]
            earlier_image = images < first[1]
            before_text = (chunk > best_text) | ((chunk == best_text) & earlier_text)
            before_image = (chunk > best_image) | ((chunk == best_image) & earlier_image)
        across[part] = before_text.sum(dim=1)
        down += before_image.sum(dim=0)
    return across, down


def hit_chance(partners: Int[Tensor, "n"], candidates: int, k: int) -> Float[Tensor, "n"]:
    r"""How often random scores put a true partner among the k best, for n queries.

    $1 - \binom{C - t}{k} / \binom{C}{k}$ for t true ones among C candidates.

    Args:
        partners: Number of true partners of each query.
        candidates: Number of candidates.
        k: Recall cutoff.

    Example:
        >>> hit_chance(torch.tensor([1, 5]), 5000, 1)
        tensor([0.0002, 0.0010], dtype=torch.float64)
        >>> hit_chance(torch.tensor([2]), 3, 2).item()
        1.0
    """
    missed = torch.ones(len(partners), dtype=torch.float64)
    for i in range(min(k, candidates)):
        left = candidates - i
        missed *= (left - partners).clamp(min=0).double() / left
    return 1 - missed
