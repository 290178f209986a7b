"""Every image with every text.

In: targets. Out: a mask that is True everywhere. Never: chance.
"""

import torch
from torch import Generator
from typing_extensions import override

from vlmtune.pairs.base import Mask, PairPolicy, Reference
from vlmtune.types import Targets


class AllPairs(PairPolicy):
    """Every image with every text of the batch (Cola's released code); memory grows with N x M.

    Example:
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> AllPairs()(Targets(eye, eye, eye), torch.Generator()).all()
        tensor(True)
    """

    @override
    def __call__(self, targets: Targets, generator: Generator, reference: Reference = None) -> Mask:
        del generator, reference
        return torch.ones_like(targets.truth)
