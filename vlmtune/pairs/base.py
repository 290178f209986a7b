"""What a pair policy is: it chooses the image-text pairs of a batch that a joint adapter scores."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlmtune.config import Configured
from vlmtune.types import Targets


class PairPolicy(Configured, ABC):
    """Chooses the pairs to score.

    Attributes:
        needs_reference: True where it reads the scores of the frozen backbone's own embeddings.
        needs_mined_negatives: True where it takes texts of mined neighbours, which training
            batches then must have.
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
        """Returns True where a pair is to be scored; `generator` is the only source of chance."""
