"""What an objective is: a number to minimise, from scores and what is true.

No model: a rank's score shard, and the `ProcessGroup` that adds and gathers over ranks, come from
outside.

Laws (tests/contracts/test_objectives.py): scalar, finite, differentiable; the order of images and
texts does not matter; true scores above false ones cost less than the reverse (regularisers aside);
the shares of W ranks add up to the loss of the whole.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from jaxtyping import Float
from torch import Tensor, nn

from vlmtune.config import Configured
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError
from vlmtune.types import Scores, ScoreShard, Targets

Need = Literal["embedded", "tokens", "reference"]


class Objective(Configured, nn.Module, ABC):
    """A weighted loss over scores.

    Args:
        weight: Factor in the sum of objectives, >= 0 and finite.

    Attributes:
        needs: What it reads of `Scores` beside values: "embedded" (a dual adapter), "tokens" (one
            that gives tokens too), "reference" (scores of the frozen backbone).
        regulariser: True where true scores above false ones need not cost less than the reverse.

    Raises:
        UserError: The weight is negative or no finite number.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    regulariser: ClassVar[bool] = False

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise UserError(f"expected a weight >= 0, got {weight}: correct the objective's weight")
        self.weight = weight

    @abstractmethod
    def forward(self, scores: Scores, targets: Targets) -> Float[Tensor, ""]:
        """Returns the loss of a whole batch, not yet weighted."""

    def diagnose(self, scores: Scores, targets: Targets) -> dict[str, float]:
        """Returns numbers worth logging beside the loss, by name; by default none."""
        del scores, targets
        return {}


class ShardedObjective(Objective, ABC):
    """An objective that a rank can compute for its own images and texts.

    The full N x M matrix is then on no rank: memory is linear in the global batch.
    """

    @abstractmethod
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Float[Tensor, ""]:
        """Returns this rank's part; the parts of all ranks add up to the loss of the whole."""

    def forward(self, scores: Scores, targets: Targets) -> Float[Tensor, ""]:
        """Returns the loss of a whole batch, not yet weighted."""
        return self.shard_loss(
            ScoreShard(scores, targets, scores, targets), ProcessGroup(alone=True)
        )
