"""Wins on 2 x 2 items: two images, two captions, caption i true of image i.

Rows are images, columns are captions. A win needs a strictly greater score, so a tie is never one.
Random scores reach `IMAGE_CHANCE`, `TEXT_CHANCE` and `GROUP_CHANCE`.
Source: Winoground, Thrush et al. 2022, section 3.1; the image score is the accuracy of Cola,
Ray et al. 2023, section 5.1.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.errors import UserError

IMAGE_CHANCE = 1 / 4
TEXT_CHANCE = 1 / 4
GROUP_CHANCE = 1 / 6


def image_wins(scores: Float[Tensor, "n 2 2"]) -> Bool[Tensor, "n"]:
    """Each caption prefers its image: `s[0,0] > s[1,0]` and `s[1,1] > s[0,1]`.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> image_wins(torch.tensor([[[0.9, 0.2], [0.1, 0.3]], [[0.5, 0.0], [0.5, 1.0]]]))
        tensor([ True, False])
    """
    scores = _ordered(scores)
    return (scores[:, 0, 0] > scores[:, 1, 0]) & (scores[:, 1, 1] > scores[:, 0, 1])


def text_wins(scores: Float[Tensor, "n 2 2"]) -> Bool[Tensor, "n"]:
    """Each image prefers its caption: `s[0,0] > s[0,1]` and `s[1,1] > s[1,0]`.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> text_wins(torch.tensor([[[0.9, 0.95], [0.1, 0.96]]]))
        tensor([False])
    """
    scores = _ordered(scores)
    return (scores[:, 0, 0] > scores[:, 0, 1]) & (scores[:, 1, 1] > scores[:, 1, 0])


def group_wins(scores: Float[Tensor, "n 2 2"]) -> Bool[Tensor, "n"]:
    """Both `image_wins` and `text_wins`.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> group_wins(torch.tensor([[[2.0, 1.0], [0.0, 3.0]]]))
        tensor([True])
    """
    return image_wins(scores) & text_wins(scores)


def equivariance_deviations(scores: Float[Tensor, "n 2 2"]) -> Float[Tensor, "n 2"]:
    """How far the scores are from equivariant, on the text side and on the image side.

    `|(s[0,0] - s[0,1]) - (s[1,1] - s[1,0])|` and `|(s[0,0] - s[1,0]) - (s[1,1] - s[0,1])|`: a step
    from one caption to the other should change the score of both images alike, and a step from one
    image to the other that of both captions. 0 is best; the unit is that of the scores, so models
    with different temperatures do not compare. It says nothing about right and wrong.
    Source: EqSim, Wang et al. 2023, equation 6 (EqSim v2) and section 5.4, figure 6.

    Raises:
        UserError: A score is NaN.

    Example:
        >>> equivariance_deviations(torch.tensor([[[2.0, 1.0], [0.0, 4.0]]])).tolist()
        [[3.0, 1.0]]
    """
    scores = _ordered(scores)
    true = scores[:, 0, 0] - scores[:, 1, 1]
    false = scores[:, 0, 1] - scores[:, 1, 0]
    return torch.stack([(true - false).abs(), (true + false).abs()], dim=1)


def _ordered(scores: Float[Tensor, "n 2 2"]) -> Float[Tensor, "n 2 2"]:
    wrong = int(torch.isnan(scores).sum())
    if wrong:
        raise UserError(
            f"expected scores that can be compared, {wrong} of {scores.numel()} are NaN: "
            "lower the learning rate or use fp32, then evaluate again"
        )
    return scores.double()
