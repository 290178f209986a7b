"""A few true texts, hard negatives and random negatives for each image."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.errors import UserError
from vlmtune.pairs.base import PairPolicy
from vlmtune.types import Targets


class ChosenPairs(PairPolicy):
    """For each image: some true texts, hard negatives of its group, and other texts.

    Cola's queries are hard because words of one object are bound to another; a batch holds few of
    those pairs and very many easy ones, so scoring all of them spends nearly all work on pairs
    that teach nothing. Pairs whose truth is not annotated are taken only as `random_negatives`.

    Args:
        positives: True texts per image at most.
        hard_negatives: Hard negatives per image at most, False texts of the image's own group.
        random_negatives: Further texts per image at most, false and of other groups.

    Raises:
        UserError: A count is negative, or all are zero.

    Example:
        >>> truth = torch.tensor([[True, False, False]])
        >>> own = torch.tensor([[True, True, False]])
        >>> chosen = ChosenPairs(1, 1, 0)(Targets(truth, own, own), torch.Generator())
        >>> chosen.tolist()
        [[True, True, False]]
    """

    def __init__(
        self, positives: int = 1, hard_negatives: int = 2, random_negatives: int = 1
    ) -> None:
        counts = (positives, hard_negatives, random_negatives)
        if min(counts) < 0 or sum(counts) == 0:
            raise UserError(
                f"expected counts of pairs >= 0 with one above 0, got {positives=}, "
                f"{hard_negatives=}, {random_negatives=}: raise one"
            )
        self.positives, self.hard_negatives, self.random_negatives = counts

    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the chosen pairs, shape (N, M)."""
        del reference
        kinds = (
            (targets.truth, self.positives),
            (targets.same_group & ~targets.truth, self.hard_negatives),
            (~targets.same_group & ~targets.truth, self.random_negatives),
        )
        chosen = torch.zeros_like(targets.truth)
        for candidates, count in kinds:
            chosen |= _draw(candidates, count, generator)
        return chosen


def _draw(candidates: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws up to `count` of the True entries of each row, uniformly."""
    count = min(count, candidates.shape[1])
    if count == 0:
        return torch.zeros_like(candidates)
    # Drawn on the CPU so that one seed gives one choice on every device.
    lottery = torch.rand(candidates.shape, generator=generator).to(candidates.device)
    lottery = lottery.masked_fill(~candidates, -1.0)
    best = lottery.topk(count, dim=1)
    chosen = torch.zeros_like(candidates)
    return chosen.scatter(1, best.indices, best.values >= 0)
