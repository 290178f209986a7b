import math

import pytest

from tests.scored import random_computed, random_targets, random_values, softmax
from vlmtune.objectives.distillation import Distillation
from vlmtune.types import Scores


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
