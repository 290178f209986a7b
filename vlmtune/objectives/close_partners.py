"""Which true pairs of a batch are close to each other, for EqSim.

The true pairs and their scores come in, positions of close partners go out. Nothing here is a loss
or carries a gradient.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.objectives.true_pairs import TruePairs

By = Literal["row", "union"]


def partners(
    pairs: TruePairs,
    rows: Float[Tensor, "n M"],
    columns: Float[Tensor, "N m"],
    k: int,
    by: By,
    draw: bool,
) -> Int[Tensor, "a listed"]:
    """Positions, among all A true pairs, of the close partners of each of the a local pairs.

    Args:
        pairs: The true pairs.
        rows: Scores that rank partners, of local images with all texts.
        columns: The same of all images with local texts.
        k: Partners from each ranking at most; -1 fills the rest.
        by: "row" takes the best texts for the image. "union" adds the best images for the text,
            listed beside the texts, so that a partner may occur twice.
        draw: Draw partners without replacement, in proportion to the softmax of the scores,
            instead of taking the largest. A draw depends on the random state of the first rank and
            on the position of the pair in the batch, not on the number of ranks.
    """
    keys = [pairs.s12(rows)] + ([pairs.s21(rows, columns)] if by == "union" else [])
    if draw:
        noise = _noise(pairs)
        keys = [key.double() + noise[:, direction] for direction, key in enumerate(keys)]
    return torch.cat([_largest(key, pairs.comparable, k) for key in keys], dim=1)


def _largest(
    keys: Float[Tensor, "a A"], valid: Bool[Tensor, "a A"], k: int
) -> Int[Tensor, "a least_of_k_and_A"]:
    """Positions of the k largest valid keys of each row, -1 where a row has fewer.

    The first of equal keys wins, on every device.
    """
    lowest = keys.detach().masked_fill(~valid, -torch.inf)
    order = lowest.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return order.masked_fill(~valid.gather(1, order), -1)


def _noise(pairs: TruePairs) -> Float[Tensor, "a 2 A"]:
    """Gumbel noise for texts and for images: the k largest of scores plus noise are k draws.

    Source: Kool et al. 2019, "Stochastic beams and where to find them", section 3 (Gumbel-top-k).
    """
    device = pairs.comparable.device
    seed = int(pairs.group.gather(torch.randint(2**31, (1,)).to(device))[0])
    local, total = pairs.comparable.shape
    noise = torch.empty(local, 2, total, dtype=torch.float64)
    for row in range(local):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + pairs.start + row)
        # `pairs.sampling.gumbel` takes the same noise from uniform numbers. Both formulas stay:
        # with the other one a seed would give other draws.
        noise[row] = -noise[row].exponential_(generator=generator).log()
    return noise.to(device)
