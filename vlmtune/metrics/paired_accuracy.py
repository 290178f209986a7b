"""Correctness of 2 x 2 items: two images, two captions, caption i true of image i.

In: 2 x 2 scores of each item. Out: which items are right. Never: a tie that is won.

Rows are images, columns are captions. A correct answer needs a strictly greater score, so a tie is
wrong. An item's group score is 1 if both its image and its text score are.
Source: Winoground, Thrush et al. 2022, section 3.1; the image score is the accuracy of Cola,
Ray et al. 2023, section 5.1.
"""

from itertools import permutations
from math import factorial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.metrics.ranking import comparable

ItemScores = Float[Tensor, "n 2 2"]
"""Scores of image i with caption j, of each of n items."""
# What random scores reach.
IMAGE_CHANCE = 1 / 4
TEXT_CHANCE = 1 / 4
GROUP_CHANCE = 1 / 6  # 4 of the 24 orders of four scores


def image_correct(scores: ItemScores) -> Bool[Tensor, "n"]:
    """Each caption prefers its image: `s[0,0] > s[1,0]` and `s[1,1] > s[0,1]`.

    Example:
        >>> image_correct(torch.tensor([[[0.9, 0.2], [0.1, 0.3]], [[0.5, 0.0], [0.5, 1.0]]]))
        tensor([ True, False])
    """
    (s00, s01), (s10, s11) = _cells(scores)
    return (s00 > s10) & (s11 > s01)


def text_correct(scores: ItemScores) -> Bool[Tensor, "n"]:
    """Each image prefers its caption: `s[0,0] > s[0,1]` and `s[1,1] > s[1,0]`.

    Example:
        >>> text_correct(torch.tensor([[[0.9, 0.95], [0.1, 0.96]]]))
        tensor([False])
    """
    (s00, s01), (s10, s11) = _cells(scores)
    return (s00 > s01) & (s11 > s10)


def matching_correct(scores: Float[Tensor, "n k k"]) -> Bool[Tensor, "n"]:
    r"""GroupMatch: no other matching of images with captions has a total score as high.

    $\sum_i s_{i,i} > \sum_i s_{i,\pi(i)}$ for each permutation $\pi$ but the identity; of 2 x 2
    items `s[0,0] + s[1,1] > s[0,1] + s[1,0]`. Random scores reach `matching_chance(k)`, of 2 x 2
    items 1/2, where the group score asks more and they reach 1/6: the two do not compare.
    Totals that differ by less than rounding does are equal: of scores $a_i + b_j$ all matchings
    have the same total.
    Source: Test-Time Matching (ICLR 2026, arXiv 2510.07632).

    Example:
        >>> matching_correct(torch.tensor([[[0.9, 0.5], [0.8, 0.6]], [[0.5, 0.5], [0.5, 0.5]]]))
        tensor([ True, False])
    """
    scores = comparable(scores)
    k = scores.shape[1]
    matchings = torch.tensor(list(permutations(range(k))))
    totals = scores[:, torch.arange(k), matchings].sum(dim=2)
    # The first permutation is the identity.
    true = totals[:, 0]
    best_other = totals[:, 1:].amax(dim=1)
    # Models give single precision, each score rounded by itself.
    largest = scores.abs().amax(dim=(1, 2))
    rounding = k * torch.finfo(torch.float32).eps * largest
    return true - rounding > best_other


def matching_chance(k: int) -> float:
    """What random scores of k images and k captions reach of `matching_correct`: 1 / k!.

    Example:
        >>> matching_chance(2)
        0.5
    """
    return 1 / factorial(k)


def equivariance_deviations(scores: ItemScores) -> Float[Tensor, "n 2"]:
    """How far the scores are from equivariant, on the text side and on the image side.

    `|(s[0,0] - s[0,1]) - (s[1,1] - s[1,0])|` and `|(s[0,0] - s[1,0]) - (s[1,1] - s[0,1])|`: a step
    from one caption to the other should change the score of both images by the same amount, and a
    step from one image to the other that of both captions. 0 is best. The unit is that of the
    scores, so models with different temperatures do not compare. The number does not say whether
    the model is right.
    Source: EqSim, Wang et al. 2023, equation 6 (EqSim v2) and section 5.4, figure 6.

    Example:
        >>> equivariance_deviations(torch.tensor([[[2.0, 1.0], [0.0, 4.0]]])).tolist()
        [[3.0, 1.0]]
    """
    (s00, s01), (s10, s11) = _cells(scores)
    # The sum of both cancels the scores of one side, the difference those of the other side.
    true = s00 - s11
    false = s01 - s10
    on_text = (true - false).abs()
    on_image = (true + false).abs()
    return torch.stack([on_text, on_image], dim=1)


def _cells(scores: ItemScores) -> Float[Tensor, "2 2 n"]:
    """The scores of image i with caption j of all items, as `cells[i, j]`."""
    return comparable(scores).movedim(0, 2)
