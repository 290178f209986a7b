"""Ranks in a bank of images and captions, both ways, where each may have several true partners."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.errors import UserError

CHUNK = 2**20  # scores compared at a time: the comparisons stay in the processor's cache


def bank_ranks(
    scores: Float[Tensor, "N M"],
    true: Int[Tensor, "P 2"],
    ties: Literal["wrong", "first"] = "wrong",
) -> tuple[Int[Tensor, "N"], Int[Tensor, "M"]]:
    r"""Rank of the best true caption of each image, and of the best true image of each caption.

    A query is hit at K where its rank is at most K: where any true partner is among the K best.
    With the best true score b, the rank is $1 + |\{j \text{ false} : s_j \ge b\}|$
    (`ties="wrong"`), or $1 + |\{j : s_j > b\}| + |\{j < t : s_j = b\}|$ where t is the first true
    partner that scores b (`ties="first"`, what a stable sort says).

    The matrix is read once, in chunks; no second one of its size is made.

    Args:
        scores: Scores of N images and M captions.
        true: The distinct pairs (image, caption) that are true.
        ties: What becomes of a false partner that scores what the best true one does.

    Raises:
        UserError: An image or a caption has no true partner, or a score is NaN.

    Example:
        >>> scores = torch.tensor([[0.9, 0.2, 0.4], [0.6, 0.7, 0.7]])
        >>> true = torch.tensor([[0, 0], [0, 1], [1, 2]])
        >>> bank_ranks(scores, true)
        (tensor([1, 2]), tensor([1, 2, 1]))
        >>> bank_ranks(scores, true, "first")[0]  # caption 1 comes before caption 2
        tensor([1, 2])
    """
    found = scores[true[:, 0], true[:, 1]]
    ranks, best, first = [], [], []
    for side, size in enumerate(scores.shape):
        own, partner = true[:, side], true[:, 1 - side]
        if len(own.unique()) != size or bool(torch.isnan(found).any()):
            raise UserError(
                f"expected a true partner for each of {size} {('images', 'captions')[side]} and "
                "scores that can be ranked, one is lacking: check the file, or evaluate in fp32"
            )
        top = found.new_full((size,), -torch.inf).scatter_reduce(0, own, found, "amax")
        level = found == top[own]
        ranks.append(1 - torch.bincount(own[level], minlength=size) if ties == "wrong" else 1)
        best.append(top)
        # No true partner that scores less can be the first of those that score best.
        place = torch.where(level, partner, scores.shape[1 - side])
        start = partner.new_full((size,), scores.shape[1 - side])
        first.append(start.scatter_reduce(0, own, place, "amin"))
    counts = _counted(scores, (best[0], best[1]), (first[0], first[1]), ties)
    return ranks[0] + counts[0], ranks[1] + counts[1]


def _counted(
    scores: Float[Tensor, "N M"],
    best: tuple[Float[Tensor, "N"], Float[Tensor, "M"]],
    first: tuple[Int[Tensor, "N"], Int[Tensor, "M"]],
    ties: Literal["wrong", "first"],
) -> tuple[Int[Tensor, "N"], Int[Tensor, "M"]]:
    """How many partners stand before, or level with, the best true one of each query."""
    n, m = scores.shape
    across = torch.zeros(n, dtype=torch.int64)
    down = torch.zeros(m, dtype=torch.int64)
    columns = torch.arange(m)
    rows = max(1, CHUNK // m)
    for start in range(0, n, rows):
        own = slice(start, start + rows)
        chunk = scores[own]
        if bool(torch.isnan(chunk).any()):
            raise UserError(
                "expected scores that can be ranked, some are NaN: lower the learning rate or use "
                "fp32, then evaluate again"
            )
        top = best[0][own, None]
        if ties == "wrong":
            across[own] = (chunk >= top).sum(dim=1)
            down += (chunk >= best[1]).sum(dim=0)
            continue
        places = torch.arange(start, start + len(chunk))[:, None]
        across[own] = ((chunk > top) | ((chunk == top) & (columns < first[0][own, None]))).sum(1)
        down += ((chunk > best[1]) | ((chunk == best[1]) & (places < first[1]))).sum(dim=0)
    return across, down


def hit_chance(partners: Int[Tensor, "n"], candidates: int, k: int) -> Float[Tensor, "n"]:
    r"""How often random scores put a true partner among the k best, for n queries.

    $1 - \binom{C - t}{k} / \binom{C}{k}$ for t true ones among C candidates.

    Args:
        partners: Number of true partners of each query.
        candidates: How many are ranked.
        k: How many are looked at.

    Example:
        >>> hit_chance(torch.tensor([1, 5]), 5000, 1)
        tensor([0.0002, 0.0010], dtype=torch.float64)
        >>> hit_chance(torch.tensor([2]), 3, 2).item()
        1.0
    """
    missed = torch.ones(len(partners), dtype=torch.float64)
    for drawn in range(min(k, candidates)):
        left = (candidates - drawn - partners).clamp(min=0).double()
        missed *= left / (candidates - drawn)
    return 1 - missed
