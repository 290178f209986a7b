"""What answers and captions give away without an image: the mode of answers, and an n-gram model.

In: items with their answers, and which image each is about. Out: accuracies. Never: an image.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.benchmarks.rules.multiple_choice import ChoiceItem
from vlmtune.language.ngram import NGram
from vlmtune.metrics.cluster_robust import cluster_robust_mean
from vlmtune.metrics.multiple_choice import choice_credit
from vlmtune.results.metric_value import MetricValue

Halves = tuple[tuple[list[int], list[int]], ...]
"""Items that a baseline counts, and the items that it is measured on."""


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
    that tie share the credit. Of each kind, such as the question's type, `groups` has the group of
    each item. Nothing is returned where all items have one image.
    """
    # Halves of the images: answers about one image are not independent.
    is_odd = clusters % 2 == 1
    if not is_odd.any():
        return {}
    odd: list[int] = is_odd.nonzero()[:, 0].tolist()
    even: list[int] = (~is_odd).nonzero()[:, 0].tolist()
    halves = ((odd, even), (even, odd))
    metrics = {}
    for kind, group in groups.items():
        credit = _mode_credit(items, group, halves)
        metrics[f"{kind}_mode_accuracy"] = cluster_robust_mean(credit, clusters, chance)
    credit = _n_gram_credit(items, halves)
    metrics["n_gram_accuracy"] = cluster_robust_mean(credit, clusters, chance)
    return metrics


def _mode_credit(
    items: Sequence[AnsweredItem], group: Sequence[str], halves: Halves
) -> Float[Tensor, "n"]:
    """The credit of each item for the answer that is true most often in its group."""
    credit = torch.zeros(len(items), dtype=torch.float64)
    for seen, unseen in halves:
        counts: Counter[tuple[str, str]] = Counter()
        for i in seen:
            true_answer = items[i].answers[0]
            counts[group[i], true_answer] += 1
        for i in unseen:
            times = [float(counts[group[i], answer]) for answer in items[i].answers]
            credit[i] = _credit(times)
    return credit


def _n_gram_credit(items: Sequence[AnsweredItem], halves: Halves) -> Float[Tensor, "n"]:
    """The credit of each item for its likeliest candidate."""
    credit = torch.zeros(len(items), dtype=torch.float64)
    for seen, unseen in halves:
        # Of true candidates alone: the model learns what answers sound like.
        true_candidates = [items[i].candidates[0] for i in seen]
        model = NGram().fit(true_candidates)
        for i in unseen:
            likelihoods = [model.log_probability(text) for text in items[i].candidates]
            credit[i] = _credit(likelihoods)
    return credit


def _credit(scores: Sequence[float]) -> float:
    values = torch.tensor([scores], dtype=torch.float64)
    return float(choice_credit(values, "random")[0])
