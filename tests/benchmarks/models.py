"""Stand-ins of a model, which score by what a pair shows, and what metrics are to be."""

import itertools
import math
import random

import pytest
import torch

from vlmtune.report.differences import item_groups


def drawn(seed, values=4):
    """A function of any key: one of `values` numbers, drawn when it is first asked for."""
    rng, known = random.Random(seed), {}
    return lambda *key: known.setdefault(key, float(rng.randrange(values)))


def scorer(look):
    """Scores a pair by `look(image, text)`."""

    def score(images, texts, pairs=None):
        if pairs is None:
            values = [[look(image, text) for text in texts] for image in images]
        else:
            values = [look(images[i], texts[j]) for i, j in pairs.tolist()]
        return torch.tensor(values, dtype=torch.float64)

    return score


def by_name(look):
    """Scores a pair by `look(file name, text)`."""
    return scorer(lambda image, text: look(image.path.name, text))


def by_text(look):
    return scorer(lambda image, text: look(text))


def fixed(values):
    """Scores all images against all texts by a table."""
    return lambda images, texts, pairs=None: values if pairs is None else values[tuple(pairs.T)]


def oracle(benchmark):
    return lambda *_: benchmark.items.truth.double()


def check(result, expected):
    """Each metric has its value and, as far as they are told, its number of items and chance."""
    for name, numbers in expected.items():
        metric = result.metrics[name]
        found = (metric.value, metric.n, metric.chance)
        assert found[: len(numbers)] == pytest.approx(numbers), name


def weighted(result):
    """The mean of the outcomes with the weights that a report gives the items."""
    outcomes = torch.tensor(result.outcomes, dtype=torch.float64)
    return pytest.approx(float(item_groups(result).item_weights() @ outcomes), abs=1e-15)


def share(wins, *chance):
    """What `check` expects of a metric over such wins."""
    return (sum(wins) / len(wins), len(wins), *chance)


def joined(lists):
    """One list of the entries of all."""
    return list(itertools.chain.from_iterable(lists))


def mean(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def cosine(a, b):
    """Of two lists of numbers; 0 where one of them has no length."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    length = math.hypot(*a) * math.hypot(*b)
    return dot / length if length else 0.0


def beats(look, true, others, tie=False):
    """Whether the true caption scores highest; `tie` is what an equal score counts as."""
    best = max(map(look, others), default=float("-inf"))
    return look(true) > best or (tie and look(true) == best)
