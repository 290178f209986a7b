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


def costs_of(scores, targets):
    """The costs of computed pairs, true ones and false ones apart."""
    costs = {True: [], False: []}
    for i, j in scores.computed.nonzero().tolist():
        true = bool(targets.truth[i, j])
        costs[true].append(pair_cost(scores.values[i, j].item(), true))
    return costs


def naive_sigmoid(scores, targets):
    costs = costs_of(scores, targets)
    return sum(costs[True] + costs[False]) / int(scores.computed.any(dim=1).sum())


def naive_bce(scores, targets, balanced=False):
    costs = costs_of(scores, targets)
    if balanced:
        means = [sum(kind) / len(kind) for kind in costs.values() if kind]
        return sum(means) / len(means)
    both = costs[True] + costs[False]
    return sum(both) / len(both)


def naive_triplet(scores, targets):
    true, false = targets.truth & scores.computed, ~targets.truth & scores.computed
    by_image = naive_contrast(scores.values, true, false)
    return by_image + naive_contrast(scores.values.T, true.T, (false & ~targets.same_group).T)


def naive_itm(scores, targets, matching, ranking):
    true, false = targets.truth & scores.computed, ~targets.truth & scores.computed
    ranked = naive_contrast(scores.values, true, false)
    return matching * naive_bce(scores, targets) + ranking * ranked


def naive_distillation(scores, targets, temperature):
    both = scores.reference / temperature, scores.values / temperature, scores.computed
    divergence = naive_divergence(*both) + naive_divergence(*(x.T for x in both))
    return temperature**2 * divergence / 2


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


def naive_hard(scores, targets, relative):
    values, computed, truth = scores.values, scores.computed, targets.truth
    sides = naive_side(values, computed, truth, relative)
    sides += naive_side(values.T, computed.T, truth.T, relative)
    return sides / 2 if relative else (naive_positives(values, computed, truth) + sides) / 3


LOSSES = [
    (Sigmoid, naive_sigmoid, {}),
    (TripletClip, naive_triplet, {}),
    (ITM, naive_itm, {"matching": 1.0, "ranking": 0.0}),
    (ITM, naive_itm, {"matching": 0.0, "ranking": 1.0}),
    (ITM, naive_itm, {"matching": 0.5, "ranking": 2.0}),
    (PairBCE, naive_bce, {"balanced": True}),
    (PairBCE, naive_bce, {"balanced": False}),
    *((Distillation, naive_distillation, {"temperature": t}) for t in (0.5, 1.0, 4.0)),
    (HardNegative, naive_hard, {"relative": True}),
    (HardNegative, naive_hard, {"relative": False}),
]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(5, 9), (6, 3)], ids=str)
@pytest.mark.parametrize(("kind", "naive", "options"), LOSSES)
def test_it_equals_the_double_loop(kind, naive, options, shape, seed):
    computed = random_computed(seed, shape)
    computed[0] &= seed % 2 > 0  # an image without pairs
    reference = random_values(50 + seed, shape)
    scores = Scores(random_values(seed, shape), computed, reference=reference)
    targets = random_targets(seed, shape)
    got = kind(**options)(scores, targets).item()
    assert got == pytest.approx(naive(scores, targets, **options), abs=1e-12)


@pytest.mark.parametrize("kind", [True, False])
def test_balanced_over_one_kind_is_its_mean(kind):
    values = torch.randn(2, 3, dtype=torch.float64)
    truth = torch.full((2, 3), kind)
    scores = Scores.full(values)
    got = PairBCE(balanced=True)(scores, same(truth))
    assert got.item() == pytest.approx(naive_bce(scores, same(truth)))


def test_the_choice_of_negatives_has_no_gradient():
    values = random_values(4, (4, 4)).requires_grad_()
    eye = torch.eye(4, dtype=torch.bool)
    HardNegative()(Scores.full(values), same(eye)).backward()
    s = values.detach()
    by_row = s.masked_fill(eye, -torch.inf).softmax(dim=1)
    by_column = s.masked_fill(eye, -torch.inf).softmax(dim=0)
    want = ((by_row + by_column) * s.sigmoid() - eye * (-s).sigmoid()) / 12
    torch.testing.assert_close(values.grad, want)
