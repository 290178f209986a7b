"""What an objective is: a number to minimise, from scores and what is true.

No model, no process group.

Laws (tests/contracts/test_objectives.py): scalar, finite, differentiable; the order of images and
texts does not matter; true scores above false ones cost less than the reverse.
"""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.types import Scores, Targets


class Objective(Configured, nn.Module, ABC):
    """A weighted loss over scores.

    Args:
        weight: Factor in the sum of objectives, >= 0.

    Raises:
        UserError: The weight is negative.
    """

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        if weight < 0:
            raise UserError(f"expected a weight >= 0, got {weight}: correct the objective's weight")
        self.weight = weight

    @abstractmethod
    def forward(self, scores: Scores, targets: Targets) -> Float[Tensor, ""]:
        """Returns the loss, not yet weighted."""
