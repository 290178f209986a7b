"""The numbers of validation, which `torchmetrics` accumulates over batches and ranks.

In: losses and scores of held-out batches. Out: `torchmetrics.Metric`s, for Lightning to log.
Never: a number of a benchmark, whose scores are complete on every rank.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from vlmtune.metrics.torchmetrics import MultipleChoiceAccuracy
from vlmtune.objectives.base import Objective
from vlmtune.types import Scores, Targets


class Validation(nn.Module):
    """The mean of each loss over records, and the accuracy of choosing a true text for an image.

    An image is right if a true text scores above all false texts of its batch, hard negatives
    included; a tie is wrong. Images without a true and a false text that were scored do not count.

    Args:
        losses: Names of the losses, see `distinct_names`.
    """

    def __init__(self, losses: Iterable[str]) -> None:
        super().__init__()
        # Infinite losses have stopped the run. ("disable" would ignore the weights.)
        means = {name: MeanMetric(nan_strategy="error") for name in losses}
        self.means = nn.ModuleDict(means)
        self.accuracy = MultipleChoiceAccuracy()

    def update(
        self, losses: Iterable[tuple[str, Tensor]], scores: Scores, targets: Targets, records: int
    ) -> dict[str, Metric]:
        """Adds a batch; returns the metrics by the names that they are logged as."""
        logged: dict[str, Metric] = {}
        for name, loss in losses:
            mean = cast(MeanMetric, self.means[name])
            mean.update(loss, weight=records)
            logged[f"val/{name}"] = mean
        # Credits are in double precision, which some accelerators lack.
        on_cpu = candidates(scores, targets).cpu()
        self.accuracy.update(on_cpu)
        logged["val/accuracy"] = self.accuracy
        return logged


def candidates(scores: Scores, targets: Targets) -> Float[Tensor, "n m"]:
    """Returns scores for `choice_credit`: of the best true text, then of false ones.

    Texts that are true or were not scored are -inf; images without either kind are left out.

    Example:
        >>> scores = Scores.full(torch.tensor([[0.9, 0.1], [0.8, 0.2]]))
        >>> candidates(scores, Targets.diagonal(2))
        tensor([[0.9000,   -inf, 0.1000],
                [0.2000, 0.8000,   -inf]])
    """
    is_true = scores.computed & targets.truth
    is_false = scores.computed & ~targets.truth
    # An image may have several true texts: one that scores above all false texts suffices.
    true_scores = scores.values.masked_fill(~is_true, -torch.inf)
    best_true = true_scores.amax(dim=1, keepdim=True)
    false_scores = scores.values.masked_fill(~is_false, -torch.inf)
    true_first = torch.cat([best_true, false_scores], dim=1)
    # Without a false text a choice would be right for nothing.
    has_both = is_true.any(dim=1) & is_false.any(dim=1)
    return true_first[has_both]


def distinct_names(objectives: Sequence[Objective]) -> list[str]:
    """Returns what the losses are logged as; the second PairBCE of a list is "PairBCE-2"."""
    names: list[str] = []
    for objective in objectives:
        name = objective.name
        count = 2
        while name in names:
            name = f"{objective.name}-{count}"
            count += 1
        names.append(name)
    return names
