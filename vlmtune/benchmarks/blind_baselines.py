"""What answers and captions give away without an image: the mode of answers, and an n-gram model.

In: items with their answers, and which image each is about. Out: accuracies. Never: an image.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem
from vlmtune.language.ngram import NGram
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.metrics.multiple_choice import choice_credit
from vlmtune.results.metric_value import MetricValue


@dataclass(frozen=True)
class AnsweredItem(ChoiceItem):
    """An item; `answers` are those of its candidates, the true one first."""

    answers: tuple[str, ...] = ()


def accuracies_without_images(
    items: Sequence[AnsweredItem],
    groups: Mapping[str, Sequence[str]],
    clusters: Int[Tensor, "n"],
    chance: float,
) -> dict[str, MetricValue]:
    """Accuracies without an image, counted on one half of the images and measured on the other.

    `<kind>_mode_accuracy` takes the answer that is true most often within the item's group;
    `n_gram_accuracy` the candidate that a trigram model of true candidates finds likeliest. Answers
    that tie share the credit.

    Args:
        items: The n items.
        groups: Of each kind of group, such as the question's type, the group of each item.
        clusters: The image of each item; nothing is returned where all have one.
        chance: What random answers reach.
    """
    # Halves of the images: answers about one image are not independent.
    is_odd = clusters % 2 == 1
    if not is_odd.any():
        return {}
    names = [*(f"{kind}_mode_accuracy" for kind in groups), "n_gram_accuracy"]
    credits = {name: torch.zeros(len(items), dtype=torch.float64) for name in names}
    for half in (is_odd, ~is_odd):
        seen: list[int] = half.nonzero()[:, 0].tolist()
        unseen: list[int] = (~half).nonzero()[:, 0].tolist()
        for kind, group in groups.items():
            counts = Counter((group[i], items[i].answers[0]) for i in seen)
            for i in unseen:
                times = [float(counts[group[i], answer]) for answer in items[i].answers]
                credits[f"{kind}_mode_accuracy"][i] = _credit(times)
        model = NGram().fit(items[i].candidates[0] for i in seen)
        for i in unseen:
            likelihoods = [model.log_probability(text) for text in items[i].candidates]
            credits["n_gram_accuracy"][i] = _credit(likelihoods)
    return {name: cluster_robust_mean(credit, clusters, chance) for name, credit in credits.items()}


def _credit(scores: Sequence[float]) -> float:
    values = torch.tensor([scores], dtype=torch.float64)
    return float(choice_credit(values, "random")[0])
