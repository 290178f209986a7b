import math

import pytest

from tests.scored import random_computed, random_targets, random_values
from vlmtune.objectives.sigmoid import Sigmoid
from vlmtune.types import Scores


def naive(values, computed, truth):
    total, images = 0.0, set()
    for i, j in computed.nonzero().tolist():
        sign = 1 if truth[i, j] else -1
        total -= math.log(1 / (1 + math.exp(-sign * values[i, j].item())))
        images.add(i)
    return total / len(images)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(5, 9), (6, 3)])
def test_equals_the_double_loop(seed, shape):
    values, targets = random_values(seed, shape), random_targets(seed, shape)
    computed = random_computed(seed, shape)
    got = Sigmoid()(Scores(values, computed), targets)
    assert got.item() == pytest.approx(naive(values, computed, targets.truth), abs=1e-12)
