"""Negatives drawn in both directions at once, so that EqSim needs no further pair."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlmtune.pairs.base import PairPolicy
from vlmtune.pairs.sampling import check_counts, check_temperature, drawn, gumbel
from vlmtune.types import Targets


class MutualPairs(PairPolicy):
    r"""One true text per image and false ones drawn mutually: a meets b's text where b meets a's.

    With $t_a$ the true text of image a, a pair of images (a, b) that is drawn gives $s(a, t_b)$ and
    $s(b, t_a)$, and the true pairs $s(a, t_a)$, $s(b, t_b)$ are there anyway: EqSim's four scores
    for every negative, and not one pair more than `RankingPairs` without `mirrored` scores. Drawn
    one by one as METER's are, s(b, t_a) is new for nearly every negative (31 pairs instead of 16).

    Pairs of images are taken in three rounds. First come pairs of which either text is mined for
    the other image (`Targets.mined_negatives`), in random order, while both images have fewer than
    `mined` of them. Then come others, largest $(s_{a t_b} + s_{b t_a}) / 2\tau$ plus Gumbel noise
    first, while both have fewer than `hard` of them. The rest is uniform, until each image has
    `negatives`, or one fewer where no partner is left. A pair of images is never taken where either
    text is true of the other image.

    Source: EqSim (Wang et al. 2023), section 3 and appendix C, for what is compared; the mutual
    draw is ours.

    Args:
        negatives: False texts per image.
        hard: How many of them are hard by the scores of the backbone.
        temperature: $\tau$; the scores already have the backbone's own.
        mined: How many of them are texts of mined neighbours, which `MinedNeighbours` adds; where
            partners run out others take their place.

    Raises:
        UserError: Counts are out of range, or the temperature is not positive.

    Example:
        >>> eye = torch.eye(4, dtype=torch.bool)
        >>> chosen = MutualPairs(negatives=1)(Targets(eye, eye, eye), torch.Generator())
        >>> bool((chosen == chosen.T).all()), int(chosen.sum())
        (True, 8)
    """

    def __init__(
        self, negatives: int = 15, hard: int = 0, temperature: float = 1.0, mined: int = 0
    ) -> None:
        check_counts(negatives, hard, mined)
        check_temperature(temperature)
        self.negatives, self.hard, self.mined = negatives, hard, mined
        self.temperature = temperature
        self.needs_reference, self.needs_mined_negatives = hard > 0, mined > 0

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        truth = targets.truth
        uniform = torch.zeros(truth.shape, device=truth.device)
        true = drawn(uniform, truth, truth.any(dim=1).long(), generator)
        images, texts = true.nonzero(as_tuple=True)
        false = ~truth[images][:, texts].cpu()
        allowed = false & false.T  # the diagonal is true
        taken, wanted = torch.zeros_like(allowed), torch.ones(len(images), dtype=torch.long)
        logits = flat = torch.zeros(allowed.shape, dtype=torch.float64)
        if self.mined and targets.mined_negatives is not None:
            near = targets.mined_negatives[images][:, texts].cpu()
            taken = matched(flat, allowed & (near | near.T), self.mined * wanted, generator)
        if self.hard:
            assert reference is not None
            square = reference.detach()[images][:, texts].double().cpu() / self.temperature
            logits = (square + square.T) / 2
        taken |= matched(logits, allowed & ~taken, self.hard * wanted, generator)
        rest = self.negatives - taken.sum(dim=1)
        taken |= matched(flat, allowed & ~taken, rest, generator)
        a, b = taken.to(truth.device).nonzero(as_tuple=True)
        chosen = true.clone()
        chosen[images[a], texts[b]] = True
        return chosen


def matched(
    logits: Float[Tensor, "n n"],
    allowed: Bool[Tensor, "n n"],
    wanted: Int[Tensor, "n"],
    generator: torch.Generator,
) -> Bool[Tensor, "n n"]:
    """Partners that want each other: greedily by logits plus noise, at most `wanted` of each row.

    Args:
        logits: Symmetric log-probabilities up to a constant.
        allowed: Which pairs may be taken, symmetric, never with oneself.
        wanted: How many partners each row may have.
        generator: The source of chance.
    """
    rows, columns = allowed.triu(1).nonzero(as_tuple=True)
    keys = logits[rows, columns] + gumbel(torch.Size([len(rows)]), generator)
    order = keys.argsort(descending=True)
    left, taken = wanted.tolist(), torch.zeros_like(allowed)
    open_rows = sum(count > 0 for count in left)
    for a, b in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if left[a] > 0 and left[b] > 0:
            taken[a, b] = taken[b, a] = True
            for row in (a, b):
                left[row] -= 1
                open_rows -= left[row] == 0
            if open_rows < 2:
                break
    return taken
