"""What answers and captions give away without an image: the mode of answers, and an n-gram model.

In: items with the true candidate first, and which image each is about. Out: each item's credit.
Never: an image.

Both are counted on one half of the images and measured on the other.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlmtune.language.ngram import NGram
from vlmtune.metrics.multiple_choice import choice_credit

Scores = Callable[[int], Sequence[float]]  # of the candidates of an item, by its number


def mode_credit(
    groups: Sequence[str], answers: Sequence[Sequence[str]], clusters: Int[Tensor, "n"]
) -> Float[Tensor, "n"] | None:
    """Credit for taking the answer that is true most often within the group of an item.

    Args:
        groups: The group of each item, such as the question's type.
        answers: The answers of each item, the true one first.
        clusters: The image of each item; None is returned where all have one.

    Example:
        >>> images = torch.tensor([0, 1, 2])
        >>> mode_credit("aaa", [("yes", "no"), ("yes", "no"), ("no", "yes")], images).tolist()
        [1.0, 0.5, 0.0]
    """

    def fitted(seen: Sequence[int]) -> Scores:
        counts = Counter((groups[i], answers[i][0]) for i in seen)
        return lambda i: [float(counts[groups[i], answer]) for answer in answers[i]]

    return _credit(fitted, clusters)


def n_gram_credit(
    candidates: Sequence[Sequence[str]], clusters: Int[Tensor, "n"]
) -> Float[Tensor, "n"] | None:
    """Credit for taking the candidate that a trigram model of true candidates finds likeliest.

    Args:
        candidates: The texts of each item, the true one first.
        clusters: The image of each item; None is returned where all have one.
    """

    def fitted(seen: Sequence[int]) -> Scores:
        model = NGram().fit(candidates[i][0] for i in seen)
        return lambda i: [model.log_probability(text) for text in candidates[i]]

    return _credit(fitted, clusters)


def _credit(
    fitted: Callable[[Sequence[int]], Scores], clusters: Int[Tensor, "n"]
) -> Float[Tensor, "n"] | None:
    """The credit of each item by scores that are fitted on the other half of the images."""
    # Halves of the images: answers about one image are not independent.
    is_odd = clusters % 2 == 1
    even, odd = (~is_odd).nonzero()[:, 0].tolist(), is_odd.nonzero()[:, 0].tolist()
    if not even or not odd:
        return None
    credit = torch.zeros(len(clusters), dtype=torch.float64)
    for half, other in ((even, odd), (odd, even)):
        scores = fitted(other)
        for i in half:
            values = torch.tensor([scores(i)], dtype=torch.float64)
            credit[i] = choice_credit(values, "random")[0]
    return credit
