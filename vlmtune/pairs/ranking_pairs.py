"""One true text and several false ones for each image (METER).

In: targets, and reference scores where `hard`. Out: a mask. Never: a true text as a negative.
"""

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Generator
from typing_extensions import override

from vlmtune.pairs.base import Mask, NegativePairs, Reference, sample_rows, with_mirrored
from vlmtune.types import Targets


class RankingPairs(NegativePairs):
    r"""For each image one of its true texts and `negatives` false ones.

    First `mined` texts are sampled uniformly from those that a similarity cache finds hard for the
    image (`Targets.mined_negatives`). Then `hard` others are sampled in proportion to $e^{s_{ij}}$,
    without replacement. The rest is uniform over the false texts that are left.

    Source: METER's released retrieval code (Dou et al. 2022) scores one true caption against 15
    random captions, from the corpus rather than the batch, and does not exclude other true
    captions. EqSim (Wang et al. 2023), appendix C, makes 8 of the 15 hard by cached matching scores
    (`mined=8`), and adds the images of the 15; it does not say how it samples them.

    Args:
        mirrored: Also score the images of the false texts: with the false text, and with the true
            text it was sampled against. EqSim compares these four scores.

    Example:
        >>> truth = torch.tensor([[True, False, False, False]])
        >>> RankingPairs(negatives=2)(Targets(truth, truth, truth), torch.Generator()).sum()
        tensor(3)
    """

    def __init__(
        self,
        negatives: PositiveInt = 15,
        hard: NonNegativeInt = 0,
        mined: NonNegativeInt = 0,
        mirrored: bool = False,
    ) -> None:
        super().__init__(negatives, hard, mined)
        self.mirrored = mirrored

    @override
    def __call__(self, targets: Targets, generator: Generator, reference: Reference = None) -> Mask:
        truth = targets.truth
        uniform = torch.zeros(truth.shape, device=truth.device)
        # 1 for an image with a true text, else 0: an image without one gets no negatives either.
        each = truth.any(dim=1).long()
        true = sample_rows(uniform, truth, each, generator)
        false = torch.zeros_like(truth)
        if self.mined and targets.mined_negatives is not None:
            mined = targets.mined_negatives & ~truth
            false = sample_rows(uniform, mined, self.mined * each, generator)
        if self.hard:
            assert reference is not None
            unused = ~truth & ~false
            false |= sample_rows(reference, unused, self.hard * each, generator)
        # What mined and hard texts leave is filled by any false text.
        unused = ~truth & ~false
        rest = self.negatives * each - false.sum(dim=1)
        false |= sample_rows(uniform, unused, rest, generator)
        if self.mirrored:
            return with_mirrored(true, false, truth)
        return true | false
