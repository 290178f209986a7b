import math

import pytest
import torch

from tests.scored import random_computed, random_targets, random_values, same
from vlmtune.objectives.pair_bce import PairBCE
from vlmtune.types import Scores


def batch(seed=0):
    return random_values(seed), random_computed(seed), random_targets(seed)


def cost(score, true):
    probability = 1 / (1 + math.exp(-score))
    return -math.log(probability if true else 1 - probability)


def naive(values, computed, truth, balanced):
    costs = {True: [], False: []}
    for i, j in computed.nonzero().tolist():
        costs[bool(truth[i, j])].append(cost(values[i, j].item(), bool(truth[i, j])))
    if balanced:
        means = [sum(kind) / len(kind) for kind in costs.values() if kind]
        return sum(means) / len(means)
    both = costs[True] + costs[False]
    return sum(both) / len(both)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_double_loop(seed, balanced):
    values, computed, targets = batch(seed)
    got = PairBCE(balanced=balanced)(Scores(values, computed), targets)
    assert got.item() == pytest.approx(naive(values, computed, targets.truth, balanced), abs=1e-12)


@pytest.mark.parametrize("kind", [True, False])
def test_balanced_over_one_kind_is_its_mean(kind):
    values = torch.randn(2, 3, dtype=torch.float64)
    truth = torch.full((2, 3), kind)
    got = PairBCE(balanced=True)(Scores.full(values), same(truth))
    want = naive(values, torch.ones(2, 3, dtype=torch.bool), truth, False)
    assert got.item() == pytest.approx(want)
