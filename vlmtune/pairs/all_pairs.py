"""Every image with every text: targets come in, an all-True mask goes out; it never draws."""

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
