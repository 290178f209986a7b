"""Which true pairs of a batch are close to a rank's own: the best of scores, or a draw."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.objectives.equivariance import By, gumbel, largest
from vlmtune.objectives.true_pairs import TruePairs


def partners(
    pairs: TruePairs,
    rows: Float[Tensor, "n M"],
    columns: Float[Tensor, "N m"],
    k: int,
    by: By,
    draw: bool,
) -> Int[Tensor, "a listed"]:
    """Positions, among all A true pairs, of the close partners of each of the a own pairs.

    Args:
        pairs: The true pairs.
        rows: What ranks them, of own images with all texts.
        columns: The same of all images with own texts.
        k: Length of a list, at most; missing places are -1.
        by: "row" lists texts for the image, "column" images for the text; the lists of "union"
            stand side by side, and both may hold the same partner.
        draw: Draws without replacement, in proportion to the softmax of what ranks, instead of
            taking the largest (of equal ones the first). A draw depends on the random state of the
            first rank and on the place of the own pair in the batch, not on how many ranks share
            the batch.
    """
    noise = _noise(pairs) if draw else None
    sides = (("row", pairs.across(rows)), ("column", pairs.back(rows, columns)))
    lists = []
    for direction, (name, keys) in enumerate(sides):
        if by in (name, "union"):
            keys = keys if noise is None else keys.double() + noise[:, direction]
            lists.append(largest(keys, pairs.valid, k))
    return torch.cat(lists, dim=1)


def _noise(pairs: TruePairs) -> Float[Tensor, "a 2 A"]:
    """Under which the largest are a draw, for either direction."""
    device = pairs.valid.device
    seed = int(pairs.group.gather(torch.randint(2**31, (1,)).to(device))[0])
    own, everyone = pairs.valid.shape
    noise = torch.empty(own, 2, everyone, dtype=torch.float64)
    for place in range(own):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + pairs.start + place)
        noise[place] = gumbel(torch.Size((2, everyone)), generator)
    return noise.to(device)
