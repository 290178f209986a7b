import math

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax

from tests.scored import random_computed, random_targets, random_values
from vlmtune.objectives.distillation import Distillation
from vlmtune.types import Scores


def softmax(row):
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def naive_side(values, reference, computed, temperature):
    rows = []
    for i in range(len(values)):
        there = [j for j in range(values.shape[1]) if computed[i, j]]
        if not there:
            continue
        ours = softmax([values[i, j].item() / temperature for j in there])
        theirs = softmax([reference[i, j].item() / temperature for j in there])
        rows.append(sum(q * math.log(q / p) for p, q in zip(ours, theirs, strict=True)))
    return temperature**2 * sum(rows) / len(rows)


def case(seed):
    computed = random_computed(seed)
    computed[0] = False
    reference = random_values(50 + seed)
    return Scores(random_values(seed), computed, reference=reference), random_targets(seed)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_divergence_equals_the_double_loop(seed, temperature):
    scores, targets = case(seed)
    both = scores.values, scores.reference, scores.computed
    want = naive_side(*both, temperature) + naive_side(*(x.T for x in both), temperature)
    got = Distillation(temperature=temperature)(scores, targets)
    assert got.item() == pytest.approx(want / 2, abs=1e-12)


def test_with_everything_scored_it_is_the_divergence_of_torch():
    values, reference = random_values(1), random_values(2)
    options = {"reduction": "none", "log_target": True}
    logs = [(log_softmax(values, d), log_softmax(reference, d), d) for d in (0, 1)]
    sides = [kl_div(one, other, **options).sum(d).mean() for one, other, d in logs]
    want = sum(sides) / 2
    scores = Scores(values, torch.ones_like(values, dtype=torch.bool), reference=reference)
    torch.testing.assert_close(Distillation()(scores, random_targets(0)), want)


def test_at_the_backbones_scores_it_is_0_and_at_rest():
    reference = random_values(3)
    values = reference.clone().requires_grad_()
    scores = Scores(values, random_computed(3), reference=reference)
    loss = Distillation()(scores, random_targets(3))
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert values.grad.abs().max() < 1e-12
