import math

import pytest
import torch

from tests.scored import random_computed, random_targets, random_values, same, softmax
from vlmtune.objectives.hard_negative import HardNegative
from vlmtune.types import Scores


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


def naive(values, computed, truth, relative):
    sides = naive_side(values, computed, truth, relative)
    sides += naive_side(values.T, computed.T, truth.T, relative)
    return sides / 2 if relative else (naive_positives(values, computed, truth) + sides) / 3


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_double_loop(seed, relative):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    got = HardNegative(relative=relative)(Scores(values, computed), targets)
    want = naive(values, computed, targets.truth, relative)
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
