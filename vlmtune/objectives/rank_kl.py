"""Rank-KL: the student ranks a list of candidates as a teacher does.

In: scores of a dual adapter, and a teacher's scores. Out: a loss. Never: the truth of pairs.
"""

from typing import ClassVar

from pydantic import PositiveFloat
from typing_extensions import override

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.objectives.base import Factor, Loss, Need, ShardedObjective
from vlmtune.objectives.functional import (
    Mask,
    Matrix,
    divergence,
    embedded_of,
    mean_over_ranks,
    teacher_of,
)
from vlmtune.types import Scores, ScoreShard


class RankKL(ShardedObjective):
    r"""The divergence of the student's ranking of a list from that of a teacher.

    $L = \overline{KL(P_T \,\|\, P_S)}$, a mean over images, with $P_T = \mathrm{softmax}_{j \in
    C_i} (t_{ij} / \tau_T)$ and $P_S = \mathrm{softmax}_{j \in C_i} (\cos(v_i, y_j) / \tau)$. The
    list $C_i$ of image i has the texts of its group: its true captions and its hard negatives.
    $t_{ij}$ is the teacher's score. A list of one text has no term. Unlike a label, the teacher's
    distribution says by how much a caption with one wrong word is worse than a caption that is
    merely short, and better than a caption of another image.

    Choose it to move what a joint adapter has learnt into a model with one embedding for each image
    and each text, which search can index.

    - Requirements: a dual adapter, `model.teacher`, and captions with hard negatives; the best
      lists are graded, such as those of configs/experiments/quickstart/graded.yaml.
    - Recommended: an adapter that trains the towers, such as `LoRA` or `FullFineTuning`; where
      training must not cost what the backbone could do, add a `Distillation`.
    - Relations: `Distillation` compares with the backbone before training, over the whole batch.
    - Config: `--model.objectives '[rank_kl]' --model.teacher EXPORT`.

    Source: CORE (arXiv 2609.04083), Rank-KL from a reranker to an embedding model over lists of
    five candidates, with $\tau = \tau_T = 0.05$. Ours: $\tau_T$ is separate from $\tau$, because
    the scores of vlmtune's joint adapters are logits and the scores of the paper's reranker are
    not. `whole_batch` and `by_text` are ours, too.

    Args:
        temperature: $\tau$, of the student's cosines.
        teacher_temperature: $\tau_T$, of the teacher's scores as it gives them. 1 for logits, which
            all adapters of vlmtune give; larger ones soften the ranking.
        whole_batch: Whether the list has all texts of the rank's batch. The teacher then scores all
            pairs, which is expensive for a joint teacher. Other ranks' texts are left out.
        by_text: Whether the same divergence of each text's list of images is added.

    Example:
        >>> import torch
        >>> from vlmtune.types import Embedded, Scores, Targets
        >>> cosines, everything = torch.tensor([[0.8, 0.6]]), torch.ones(1, 2) > 0
        >>> inside = Embedded(cosines, torch.eye(2), torch.tensor(1.0))
        >>> scores = Scores(cosines, everything, inside, teacher=Scores.full(cosines / 0.05))
        >>> RankKL()(scores, Targets(everything, everything, everything))
        tensor(0.)
    """

    needs = frozenset({"embedded", "teacher"})
    regulariser: ClassVar[bool] = True

    def __init__(
        self,
        weight: Factor = 1.0,
        temperature: PositiveFloat = 0.05,
        teacher_temperature: PositiveFloat = 1.0,
        whole_batch: bool = False,
        by_text: bool = False,
    ) -> None:
        super().__init__(weight)
        self.temperature = temperature
        self.teacher_temperature = teacher_temperature
        self.whole_batch = whole_batch
        self.by_text = by_text
        if whole_batch:
            self.needs = frozenset[Need]({"embedded", "teacher", "teacher_batch"})

    @override
    def shard_loss(self, shard: ScoreShard, group: ProcessGroup) -> Loss:
        # A list of texts for each image of this rank.
        cosines, wanted, listed = self._lists(shard.rows, shard.row_targets.same_group)
        loss = self._divergence(cosines, wanted, listed, group)
        if self.by_text:
            # Then a list of images for each text, so that columns become rows.
            lists = self._lists(shard.columns, shard.column_targets.same_group)
            cosines, wanted, listed = (matrix.T for matrix in lists)
            loss = loss + self._divergence(cosines, wanted, listed, group)
        return loss

    def _lists(self, scores: Scores, same_group: Mask) -> tuple[Matrix, Matrix, Mask]:
        """The student's cosines, the teacher's scores, and the pairs that are on a list."""
        embedded = embedded_of(scores, "RankKL")
        teacher = teacher_of(scores, "RankKL")
        listed = scores.computed & teacher.computed
        if not self.whole_batch:
            listed = listed & same_group
        # The bias of the scores is the same for a whole list, so it may stay.
        cosines = scores.values / embedded.scale
        # The teacher is the target: no gradient, and the type of the scores.
        return cosines, teacher.values.detach().to(cosines.dtype), listed

    def _divergence(
        self, cosines: Matrix, wanted: Matrix, listed: Mask, group: ProcessGroup
    ) -> Loss:
        wanted = wanted / self.teacher_temperature
        terms = divergence(wanted, cosines / self.temperature, listed)
        # A list of one has one order, so that there is nothing to learn from it.
        has_order = listed.sum(dim=1) > 1
        return mean_over_ranks(terms, has_order, group)
