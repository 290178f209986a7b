"""A few true texts, hard negatives and random negatives for each image.

In: targets. Out: a mask. Never: scores; hard negatives are the false texts of the group.
"""

import torch
from pydantic import NonNegativeInt
from torch import Generator, Tensor
from typing_extensions import override

from vlmtune.errors import UserError
from vlmtune.pairs.base import Mask, PairPolicy, Reference, with_mirrored
from vlmtune.types import Targets


class MixedPairs(PairPolicy):
    """For each image: some true texts, hard negatives of its group, and other texts.

    Cola's queries are hard because they bind words of one object to another. A batch has few such
    pairs and very many easy ones, so scoring all pairs spends nearly all computation on pairs that
    teach nothing. Pairs without annotated truth can only be `random_negatives`.

    Args:
        positives: True texts per image at most.
        hard_negatives: False texts of the image's group at most.
        random_negatives: False texts of other groups at most.
        mirrored: Also score the images of the false texts: with the false text, and with the true
            texts chosen for the image that it is false of. EqSim compares these four scores. A
            hard-negative caption has no image and adds nothing.

    Example:
        >>> truth, same_group = torch.tensor([[1, 0, 0]]) > 0, torch.tensor([[1, 1, 0]]) > 0
        >>> targets = Targets(truth, same_group, same_group)
        >>> MixedPairs(1, 1, 0)(targets, torch.Generator()).tolist()
        [[True, True, False]]
    """

    def __init__(
        self,
        positives: NonNegativeInt = 1,
        hard_negatives: NonNegativeInt = 2,
        random_negatives: NonNegativeInt = 1,
        mirrored: bool = False,
    ) -> None:
        if positives == hard_negatives == random_negatives == 0:
            raise UserError("expected a count of pairs above 0, got 0 for all: set one")
        self.positives = positives
        self.hard_negatives = hard_negatives
        self.random_negatives = random_negatives
        self.mirrored = mirrored

    @override
    def __call__(self, targets: Targets, generator: Generator, reference: Reference = None) -> Mask:
        del reference
        truth = targets.truth
        hard = targets.same_group & ~truth
        other = ~targets.same_group & ~truth
        true = _sample(truth, self.positives, generator)
        false = _sample(hard, self.hard_negatives, generator)
        false |= _sample(other, self.random_negatives, generator)
        if self.mirrored:
            return with_mirrored(true, false, truth)
        return true | false


def _sample(candidates: Tensor, count: int, generator: Generator) -> Tensor:
    """Samples up to `count` of the True entries of each row, uniformly."""
    count = min(count, candidates.shape[1])
    sampled = torch.zeros_like(candidates)
    if count == 0:
        return sampled
    # Drawn on the CPU, so that one seed gives one choice on every device.
    keys = torch.rand(candidates.shape, generator=generator)
    keys = keys.to(candidates.device)
    # A key below 0 is not a candidate: a row may have fewer than `count`.
    keys = keys.masked_fill(~candidates, -1.0)
    best = keys.topk(count, dim=1)
    is_candidate = best.values >= 0
    return sampled.scatter(1, best.indices, is_candidate)
