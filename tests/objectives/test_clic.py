import itertools

import pytest

from tests.scored import naive_contrast, random_targets, random_values, scored
from vlmtune.objectives.clic import CLIC


def naive(values, targets) -> tuple[float, float, float]:
    """The three losses by loops."""
    truth = targets.truth
    captions = truth.any(dim=0)
    contrast = naive_contrast(values, truth, captions & ~truth)
    contrast += naive_contrast(values.T, truth.T, ~truth.T)
    hard = targets.same_group & ~truth
    has_hard = hard.any(dim=1, keepdim=True)
    negatives = naive_contrast(values, truth & has_hard, hard)
    vectors, order = scored(values).embedded.text, []
    for mine in truth & targets.same_group:
        pairs = list(itertools.combinations(vectors[mine], 2))
        if pairs:
            order.append(sum((a - b).square().sum().item() for a, b in pairs) / len(pairs))
    return contrast / 2, negatives, sum(order) / len(order)


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_loops(seed):
    values, targets = random_values(seed), random_targets(seed)
    parts = naive(values, targets)
    for factors in ((0.5, 0.5, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        named = dict(zip(("contrast", "negatives", "order"), factors, strict=True))
        want = sum(a * b for a, b in zip(factors, parts, strict=True))
        assert CLIC(**named)(scored(values), targets).item() == pytest.approx(want, abs=1e-10)
