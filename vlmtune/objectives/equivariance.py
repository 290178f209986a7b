"""Equivariance of similarities: what two true pairs of image and text ask of their four scores.

Of the true pairs (image 1, text 1) and (image 2, text 2), $s_{12}$ is the score of image 1 with
text 2. In a square matrix of scores row i is the image and column i the text of true pair i, and a
pair of true pairs is a row (i, j), i != j, of an integer tensor (P, 2).

Source: Wang et al. 2023 (EqBen), section 3, eq. 5 and 6.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Hinge = Literal["pair", "mean"]
Side = Literal["text", "image", "both"]
By = Literal["row", "column", "union"]


# -- what is measured -------------------------------------------------------------------------


def v1_deviation(s12: Float[Tensor, "*#p"], s21: Float[Tensor, "*#p"]) -> Float[Tensor, "..."]:
    r"""$(s_{12} - s_{21})^2$, of four scores whose cross scores ought to be equal (v1, eq. 6)."""
    return (s12 - s21).square()


def v2_deviation(
    s11: Float[Tensor, "*#p"],
    s12: Float[Tensor, "*#p"],
    s21: Float[Tensor, "*#p"],
    s22: Float[Tensor, "*#p"],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""Returns the text side and the image side of v2 (eq. 6), squared.

    Text side: $((s_{11} - s_{12}) - (s_{22} - s_{21}))^2$, the text changes and the image stays.
    Image side: $((s_{11} - s_{21}) - (s_{22} - s_{12}))^2$. Together they are
    $2 (s_{11} - s_{22})^2 + 2 (s_{12} - s_{21})^2$: v2 holds v1 and asks for $s_{11} = s_{22}$ too.
    """
    diagonal, cross = s11 - s22, s12 - s21
    return (diagonal - cross).square(), (diagonal + cross).square()


def equivariance_deviation(s: Float[Tensor, "*items 2 2"]) -> Float[Tensor, "*items"]:
    """The deviation from v2 of each 2 x 2 item, both sides summed; 0 is equivariant.

    Source: section 5.4, "the equivariance score", figure 6.

    Example:
        >>> equivariance_deviation(torch.tensor([[0.9, 0.5], [0.3, 0.8]]))
        tensor(0.1000)
    """
    text, image = v2_deviation(s[..., 0, 0], s[..., 0, 1], s[..., 1, 0], s[..., 1, 1])
    return text + image


def eqsim_v1(
    s: Float[Tensor, "N N"], pairs: Int[Tensor, "P 2"], margin: float = 0.0, hinge: Hinge = "pair"
) -> Float[Tensor, ""]:
    r"""EqSim v1, the mean over `pairs` of $[(s_{ij} - s_{ji})^2 - \alpha]_+$.

    The mean over all pairs is CyCLIP's cross-modal consistency but for a factor: CyCLIP's is
    (N - 1) times it (Goel et al. 2022, section 2.2; without margin).

    Args:
        s: Scores; row i and column i are true pair i.
        pairs: Pairs (i, j) of true pairs; one that is listed twice counts twice.
        margin: The $\alpha$ up to which a deviation costs nothing.
        hinge: "pair" takes it off each pair (the paper), "mean" off the mean (released code).

    Example:
        >>> s = torch.tensor([[0.9, 0.5], [0.3, 0.8]])
        >>> eqsim_v1(s, torch.tensor([[0, 1]]))
        tensor(0.0400)
    """
    i, j = pairs.unbind(1)
    return _hinged_mean(v1_deviation(s[i, j], s[j, i]), margin, hinge)


def eqsim_v2(
    s: Float[Tensor, "N N"],
    pairs: Int[Tensor, "P 2"],
    side: Side = "both",
    margin: float = 0.0,
    hinge: Hinge = "pair",
) -> Float[Tensor, ""]:
    r"""EqSim v2, the mean over `pairs` of the hinged deviations, sides summed.

    Each side has its own hinge: $[t - \alpha]_+ + [m - \alpha]_+$ with the sides t and m of
    `v2_deviation`.

    Args:
        s: Scores; row i and column i are true pair i.
        pairs: Pairs (i, j) of true pairs; one that is listed twice counts twice.
        side: "text", "image" or "both".
        margin: The $\alpha$ up to which a deviation costs nothing.
        hinge: "pair" takes it off each pair (the paper), "mean" off the mean (released code).

    Example:
        >>> s = torch.tensor([[0.9, 0.5], [0.3, 0.8]])
        >>> eqsim_v2(s, torch.tensor([[0, 1]]), side="text")
        tensor(0.0100)
    """
    i, j = pairs.unbind(1)
    text, image = v2_deviation(s[i, i], s[i, j], s[j, i], s[j, j])
    losses = [
        _hinged_mean(deviation, margin, hinge)
        for name, deviation in (("text", text), ("image", image))
        if side in (name, "both")
    ]
    return torch.stack(losses).sum()


def _hinged_mean(deviation: Tensor, margin: float, hinge: Hinge) -> Tensor:
    count = max(len(deviation), 1)
    if hinge == "pair":
        return (deviation - margin).relu().sum() / count
    return (deviation.sum() / count - margin).relu()


# -- which pairs are close --------------------------------------------------------------------


def close_pairs(s: Float[Tensor, "N N"], k: int, by: By = "row") -> Int[Tensor, "P 2"]:
    """Pairs (i, j) where j is among the k closest to i, never i itself.

    Args:
        s: Scores; row i and column i are true pair i.
        k: How many for each i, fewer where N - 1 is less.
        by: "row" takes the texts that fit image i best, "column" the images that fit text i best,
            "union" both, each pair once. Of equal scores the first in order is taken.

    Example:
        >>> s = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.9, 0.3], [0.5, 0.0, 0.9]])
        >>> close_pairs(s, 1).tolist()
        [[0, 2], [1, 2], [2, 0]]
    """
    valid = ~torch.eye(len(s), dtype=torch.bool, device=s.device)
    sides = [m for name, m in (("row", s), ("column", s.T)) if by in (name, "union")]
    return _listed([largest(m, valid, k) for m in sides]).unique(dim=0)


def draw_close_pairs(
    logits: Float[Tensor, "N N"], draws: int, generator: torch.Generator, by: By = "union"
) -> Int[Tensor, "P 2"]:
    """Pairs (i, j) with j drawn in proportion to softmax probabilities, without replacement.

    The released code's choice: of each i first the images drawn for text i, then the texts drawn
    for image i. A j that both draw is listed twice.

    Args:
        logits: Scores whose softmax over a row (column) are the probabilities of texts (images).
        draws: How many in each direction, fewer where N - 1 is less.
        generator: The only source of chance, on the CPU.
        by: "row" draws texts for images, "column" images for texts, "union" both.

    Example:
        >>> pairs = draw_close_pairs(torch.zeros(3, 3), 2, torch.Generator().manual_seed(0))
        >>> pairs[pairs[:, 0] == 0, 1].sort().values
        tensor([1, 1, 2, 2])
    """
    valid = ~torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    sides = (("column", logits.T), ("row", logits))
    drawn = [
        largest(m.double() + gumbel(m.shape, generator).to(m.device), valid, draws)
        for name, m in sides
        if by in (name, "union")
    ]
    return _listed(drawn)


def distant_pairs(n: int, close: Int[Tensor, "P 2"]) -> Int[Tensor, "Q 2"]:
    """Every pair i < j of n that `close` lists in neither order.

    Example:
        >>> distant_pairs(3, torch.tensor([[0, 1], [1, 0]])).tolist()
        [[0, 2], [1, 2]]
    """
    distant = torch.ones(n, n, dtype=torch.bool, device=close.device).triu(1)
    i, j = close.unbind(1)
    distant[i, j] = distant[j, i] = False
    return distant.nonzero()


def largest(
    keys: Float[Tensor, "a A"], valid: Bool[Tensor, "a A"], k: int
) -> Int[Tensor, "a least_of_k_and_A"]:
    """Positions of the k largest valid keys of each row, -1 where there are fewer.

    Of equal keys the first is taken, on every device.
    """
    lowest = keys.detach().masked_fill(~valid, -torch.inf)
    order = lowest.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return order.masked_fill(~valid.gather(1, order), -1)


def gumbel(shape: torch.Size, generator: torch.Generator) -> Float[Tensor, "..."]:
    """Noise under which the k largest of logits are k draws in proportion to their softmax.

    Source: Kool et al. 2019, "Stochastic beams and where to find them", section 3 (Gumbel-top-k).
    """
    return -torch.empty(shape, dtype=torch.float64).exponential_(generator=generator).log()


def _listed(lists: list[Tensor]) -> Tensor:
    """Rows (i, j) for each j listed in row i of lists that stand side by side."""
    joined = torch.cat(lists, dim=1)
    i, position = (joined >= 0).nonzero(as_tuple=True)
    return torch.stack([i, joined[i, position]], dim=1)
