"""An objective over the embeddings of an adapter that has matching scores, too.

In: the scores of a batch. Out: the loss of their contrastive part. Never: its own formula.
"""

from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, Need, ShardedObjective
from vlmtune.types import Scores, ScoreShard, Targets


class OnEmbeddings(ShardedObjective):
    r"""Another objective, over contrastive scores (ITC) in place of matching scores (ITM).

    Adapters such as `FusionTuning(contrast=True)` give both. The contrastive scores cover all
    images and texts of all ranks, like the scores of a dual adapter; the matching scores cover
    chosen pairs. For a dual adapter it reads the adapter's scores.

    Choose it for `FusionTuning(contrast=True)`, whose contrastive scores need a loss.

    - Requirements: what the objective inside needs.
    - Recommended: an `InfoNCE` inside, beside an `ITM` of the matching scores.
    - Relations: it has no formula of its own.
    - Config: `--model.objectives '[itm, on_embeddings]'`.

    Source: Li et al. 2021 (ALBEF), section 3.2, ITC beside ITM; Wang et al. 2023 (EqSim), section
    3, for EqSim over either score.

    Args:
        objective: The objective, one that ranks can share. With a joint adapter it may read neither
            tokens nor phrases, nor a moving average.
        weight: Factor in the sum of objectives, in place of that of `objective`; None for the same.

    Example:
        >>> import torch
        >>> from vlmtune.objectives.info_nce import InfoNCE
        >>> eye = torch.eye(2, dtype=torch.bool)
        >>> OnEmbeddings(InfoNCE())(Scores.full(torch.zeros(2, 2)), Targets(eye, eye, eye))
        tensor(0.6931)
    """

    def __init__(self, objective: ShardedObjective, weight: Factor | None = None) -> None:
        if weight is None:
            weight = objective.weight
        super().__init__(weight)
        self.objective = objective
        # The contrastive scores bring their embeddings.
        others = objective.needs - {"embedded"}
        self.needs = frozenset[Need]({"contrast", *others})
        self.regulariser = objective.regulariser  # type: ignore[misc]

    @property
    @override
    def name(self) -> str:
        return f"{self.objective.name}OnEmbeddings"

    @override
    def scores_of(self, shard: ScoreShard) -> ScoreShard:
        return shard.contrast or shard

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        return self.objective.shard_loss(self.scores_of(shard), group)

    @override
    def diagnose(self, scores: Scores, targets: Targets) -> dict[str, float]:
        return self.objective.diagnose(scores, targets)
