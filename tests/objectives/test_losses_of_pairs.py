"""Losses that are sums over pairs, rows or columns, each against its double loop."""

import math

import pytest
import torch

from tests.scored import (
    naive_contrast,
    naive_divergence,
    random_computed,
    random_targets,
    random_values,
    same,
    softmax,
)
from vlmtune.objectives import ITM, Distillation, HardNegative, PairBCE, Sigmoid, TripletClip
from vlmtune.types import Scores


def pair_cost(score, true):
    probability = 1 / (1 + math.exp(-score))
    return -math.log(probability if true else 1 - probability)


def naive_sigmoid(values, computed, truth):
    pairs = computed.nonzero().tolist()
    total = sum(pair_cost(values[i, j].item(), bool(truth[i, j])) for i, j in pairs)
    return total / len({i for i, _ in pairs})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [(5, 9), (6, 3)])
def test_sigmoid_equals_the_double_loop(seed, shape):
    values, targets = random_values(seed, shape), random_targets(seed, shape)
    computed = random_computed(seed, shape)
    got = Sigmoid()(Scores(values, computed), targets)
    assert got.item() == pytest.approx(naive_sigmoid(values, computed, targets.truth), abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_triplet_clip_equals_the_double_loop(seed):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    true, false = targets.truth & computed, ~targets.truth & computed
    want = naive_contrast(values, true, false)
    want += naive_contrast(values.T, true.T, (false & ~targets.same_group).T)
    got = TripletClip()(Scores(values, computed), targets)
    assert got.item() == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("matching", "ranking"), [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_itm_equals_the_double_loop(seed, matching, ranking):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    want = matching * naive_bce(values, computed, targets.truth, balanced=False)
    true, false = computed & targets.truth, computed & ~targets.truth
    want += ranking * naive_contrast(values, true, false)
    got = ITM(matching=matching, ranking=ranking)(Scores(values, computed), targets)
    assert got.item() == pytest.approx(want, abs=1e-12)


def naive_bce(values, computed, truth, balanced):
    costs = {True: [], False: []}
    for i, j in computed.nonzero().tolist():
        costs[bool(truth[i, j])].append(pair_cost(values[i, j].item(), bool(truth[i, j])))
    if balanced:
        means = [sum(kind) / len(kind) for kind in costs.values() if kind]
        return sum(means) / len(means)
    both = costs[True] + costs[False]
    return sum(both) / len(both)


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_pair_bce_equals_the_double_loop(seed, balanced):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    got = PairBCE(balanced=balanced)(Scores(values, computed), targets)
    assert got.item() == pytest.approx(
        naive_bce(values, computed, targets.truth, balanced), abs=1e-12
    )


@pytest.mark.parametrize("kind", [True, False])
def test_balanced_over_one_kind_is_its_mean(kind):
    values = torch.randn(2, 3, dtype=torch.float64)
    truth = torch.full((2, 3), kind)
    got = PairBCE(balanced=True)(Scores.full(values), same(truth))
    want = naive_bce(values, torch.ones(2, 3, dtype=torch.bool), truth, False)
    assert got.item() == pytest.approx(want)


def case(seed):
    computed = random_computed(seed)
    computed[0] = False
    reference = random_values(50 + seed)
    return Scores(random_values(seed), computed, reference=reference), random_targets(seed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_distillation_equals_the_double_loop(seed, temperature):
    scores, targets = case(seed)
    both = scores.reference / temperature, scores.values / temperature, scores.computed
    want = naive_divergence(*both) + naive_divergence(*(x.T for x in both))
    got = Distillation(temperature=temperature)(scores, targets)
    assert got.item() == pytest.approx(temperature**2 * want / 2, abs=1e-12)


def cost(x):
    return math.log1p(math.exp(x))


def naive_side(values, computed, truth, relative):
    """Mean over rows with a true entry of the expected cost of a drawn false entry."""
    rows = []
    for i in range(len(values)):
        scored = [j for j in range(values.shape[1]) if computed[i, j]]
        true = [values[i, j].item() for j in scored if truth[i, j]]
        false = [values[i, j].item() for j in scored if not truth[i, j]]
        if not true:
            continue
        zeros = true if relative else [0.0]
        drawn = list(zip(softmax(false), false, strict=True))
        rows.append(sum(p * cost(s - zero) for zero in zeros for p, s in drawn) / len(zeros))
    return sum(rows) / len(rows) if rows else 0.0


def naive_positives(values, computed, truth):
    rows = []
    for row, counted in zip(values, computed & truth, strict=True):
        if counted.any():
            rows.append(sum(cost(-s) for s in row[counted].tolist()) / int(counted.sum()))
    return sum(rows) / len(rows) if rows else 0.0


def naive_hard(values, computed, truth, relative):
    sides = naive_side(values, computed, truth, relative)
    sides += naive_side(values.T, computed.T, truth.T, relative)
    return sides / 2 if relative else (naive_positives(values, computed, truth) + sides) / 3


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_hard_negative_equals_the_double_loop(seed, relative):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    got = HardNegative(relative=relative)(Scores(values, computed), targets)
    want = naive_hard(values, computed, targets.truth, relative)
    assert got.item() == pytest.approx(want, abs=1e-12)


def test_the_choice_of_negatives_has_no_gradient():
    values = random_values(4, (4, 4)).requires_grad_()
    eye = torch.eye(4, dtype=torch.bool)
    HardNegative()(Scores.full(values), same(eye)).backward()
    s = values.detach()
    by_row = s.masked_fill(eye, -torch.inf).softmax(dim=1)
    by_column = s.masked_fill(eye, -torch.inf).softmax(dim=0)
    want = ((by_row + by_column) * s.sigmoid() - eye * (-s).sigmoid()) / 12
    torch.testing.assert_close(values.grad, want)
