"""What an objective is: a loss over the scores of a batch.

In: scores and targets. Out: a loss to minimise. Never: a model.
The `ProcessGroup` that sums and gathers over ranks comes from outside.

Laws (tests/contracts/test_objectives.py): the loss is a finite, differentiable scalar; the order of
images and texts does not matter; ranking true pairs first costs less than ranking them last (except
for regularisers); the shard losses of all ranks add up to the loss of the whole batch.
"""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge
from pydantic import AllowInfNan
from torch import Tensor, nn
from typing_extensions import override

from vlmtune.config import Configured
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.errors import UserError, expect
from vlmtune.objectives.functional import Loss
from vlmtune.types import Scores, ScoreShard, Targets

Need = Literal[
    "embedded", "tokens", "reference", "contrast", "teacher", "teacher_batch", "phrases", "average"
]
Factor = Annotated[float, Ge(0), AllowInfNan(False)]
"""What a loss or a term of it is multiplied by: at least 0, and finite."""


class Objective(Configured, nn.Module, ABC):
    """A weighted loss over scores.

    Args:
        weight: Factor in the sum of objectives.

    Attributes:
        needs: What it needs from `Scores` besides the values: "embedded" (embeddings of a dual
            adapter), "tokens" (its tokens too), "reference" (scores of the frozen backbone),
            "contrast" (contrastive scores), "teacher" (a teacher's scores of the pairs of each
            group), "teacher_batch" (of all pairs of a rank's batch), "phrases" (scores of phrases
            of the captions), "average" (embeddings by a moving average of the trained weights).
        regulariser: True where the loss alone does not rank true scores above all false ones.
    """

    needs: frozenset[Need] = frozenset()
    regulariser: ClassVar[bool] = False

    def __init__(self, weight: Factor = 1.0) -> None:
        super().__init__()
        self.weight = weight

    @override
    def __call__(self, scores: Any, targets: Any) -> Loss:
        expect(Scores, scores, "Scores.full(matrix)")
        expect(Targets, targets, "Targets.diagonal(n), or Targets(truth, known, same_group)")
        loss = expect(Tensor, super().__call__(scores, targets), "operations on scores.values")
        if loss.ndim:
            shape = list(loss.shape)
            raise UserError(f"expected one number from {self.name}, got {shape}: take the mean")
        return loss

    @abstractmethod
    def forward(self, scores: Scores, targets: Targets) -> Loss:
        """Returns the loss of a whole batch, without its weight."""

    @property
    def name(self) -> str:
        """What its loss is logged as."""
        return type(self).__name__

    def scores_of(self, shard: ScoreShard) -> ScoreShard:
        """Returns the scores of a batch that it reads."""
        return shard

    def diagnose(self, scores: Scores, targets: Targets) -> dict[str, float]:
        """Returns values to log beside the loss, by name; none by default."""
        del scores, targets
        return {}


class ShardedObjective(Objective, ABC):
    """An objective that each rank computes for its images and texts.

    No rank holds the N x M matrix: memory is linear in the global batch.
    """

    @abstractmethod
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        """Returns this rank's part; the parts of all ranks add up to the whole loss."""

    @override
    def forward(self, scores: Scores, targets: Targets) -> Loss:
        shard = ScoreShard(scores, targets, scores, targets)
        return self.shard_loss(shard, ProcessGroup(alone=True))
