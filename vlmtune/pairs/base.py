"""What a pair policy is: targets and a generator come in, a mask of pairs to score goes out.

Laws (tests/contracts/test_pairs.py): every image with a true text gets one; no known true pair
replaces a negative; the generator is the only source of chance, and every device chooses alike.
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.types import Targets


class PairPolicy(Configured, ABC):
    """Chooses the pairs to score.

    Attributes:
        needs_reference: True where it reads the scores of the frozen backbone's own embeddings.
        needs_mined_negatives: True where it takes mined negatives, which training batches must
            then contain.
    """

    needs_reference: bool = False
    needs_mined_negatives: bool = False

    @abstractmethod
    def __call__(
        self,
        targets: Targets,
        generator: torch.Generator,
        reference: Float[Tensor, "N M"] | None = None,
    ) -> Bool[Tensor, "N M"]:
        """Returns True at the pairs to score; `generator` is the only source of chance."""


class NegativePairs(PairPolicy):
    """One true text per image and a number of false ones, some of them hard.

    Args:
        negatives: False texts per image.
        hard: How many of them are hard by the scores of the backbone.
        mined: How many of them are mined negatives, which `MinedNeighbours` adds to the batch.
            Others replace missing ones.
    """

    def __init__(self, negatives: int = 15, hard: int = 0, mined: int = 0) -> None:
        if negatives < 1 or min(hard, mined) < 0 or hard + mined > negatives:
            raise UserError(
                "expected at least 1 negative and from 0 to all of them hard or mined, got "
                f"{negatives=}, {hard=}, {mined=}: correct them"
            )
        self.negatives, self.hard, self.mined = negatives, hard, mined
        self.needs_reference, self.needs_mined_negatives = hard > 0, mined > 0
