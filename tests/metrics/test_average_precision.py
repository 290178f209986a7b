import itertools
import math

import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics.average_precision import (
    average_precision,
    class_average_precision,
    random_average_precision,
)


def naive_ap(scores, positives):
    """Sum over thresholds of (recall gained) x precision, from the definition."""
    total, before, result = sum(positives), 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [p for s, p in zip(scores, positives, strict=True) if s >= threshold]
        precision, recall = sum(chosen) / len(chosen), sum(chosen) / total
        result += (recall - before) * precision
        before = recall
    return result


# Six images, four queries, ties, the last query without a positive: AP 5/6, 1/2, 1/2.
SCORES = torch.tensor(
    [
        [0.9, 0.5, 0.9, 0.1],
        [0.8, 0.5, 0.8, 0.2],
        [0.7, 0.5, 0.7, 0.3],
        [0.6, 0.5, 0.6, 0.4],
        [0.5, 0.9, 0.1, 0.5],
        [0.4, 0.8, 0.9, 0.6],
    ]
)
LABELS = torch.tensor(
    [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
).bool()
HARD = torch.tensor(
    [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1], [1, 0, 1, 1]]
).bool()


def test_six_by_four_toy_and_its_chance():
    result = class_average_precision(SCORES, LABELS, HARD)
    assert result.values[:3].tolist() == pytest.approx([5 / 6, 0.5, 0.5])
    assert math.isnan(result.values[3])
    assert float(result.values[result.counted].mean()) == pytest.approx(0.6111111, abs=1e-7)
    assert (result.no_positives, result.empty_pool, result.none_in_pool) == (1, 0, 0)
    expected = [random_average_precision(p, n) for p, n in ((2, 5), (2, 4), (1, 4))]
    assert result.chance[:3].tolist() == pytest.approx(expected)
    assert math.isnan(result.chance[3])


def test_agrees_with_naive_under_ties():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        scores = torch.randint(6, (25,), generator=generator) / 10
        positives = torch.rand(25, generator=generator) < 0.3
        if positives.any():
            expected = naive_ap(scores.tolist(), positives.tolist())
            assert average_precision(scores, positives) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("positives", "n"), [(1, 1), (1, 4), (2, 5), (3, 5), (5, 5)])
def test_chance_is_the_mean_over_all_orders(positives, n):
    flags = [True] * positives + [False] * (n - positives)
    orders = [naive_ap(list(scores), flags) for scores in itertools.permutations(range(n))]
    assert random_average_precision(positives, n) == pytest.approx(sum(orders) / len(orders))


def test_classes_with_an_empty_pool_or_positives_outside_it():
    hard = HARD.clone()
    hard[LABELS[:, 2], 2] = False
    strict = class_average_precision(SCORES, LABELS, hard)
    assert strict.none_in_pool == 1
    assert strict.counted.tolist() == [True, True, False, False]
    reference = class_average_precision(SCORES, LABELS, hard, "reference")
    # What the released script prints under torchmetrics 1.x: (5/6 + 1/2 + 0) / 3.
    assert float(reference.values[reference.counted].mean()) == pytest.approx(0.4444444, abs=1e-7)
    hard = HARD.clone()
    hard[:, 0] = False
    for treatment in ("strict", "reference"):
        result = class_average_precision(SCORES, LABELS, hard, treatment)
        assert (result.empty_pool, result.none_in_pool) == (1, 0)
        assert result.counted.tolist() == [False, True, True, False]


def test_without_a_positive_it_is_undefined_and_nan_raises():
    assert math.isnan(average_precision(torch.rand(3), torch.zeros(3).bool()))
    with refused("NaN"):
        average_precision(torch.tensor([0.1, torch.nan]), torch.tensor([True, False]))
    spoilt = SCORES.clone()
    spoilt[0, 0] = torch.nan
    with refused("NaN"):
        class_average_precision(spoilt, LABELS, HARD)
