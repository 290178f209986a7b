import math

import pytest
import torch

from tests.scored import random_targets, random_values, same, scored
from vlmtune.objectives.clic import CLIC
from vlmtune.types import Targets


def contrast(e: float, others) -> float:
    return -math.log(e / (e + sum(others)))


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def naive(values, targets) -> tuple[float, float, float, bool]:
    """The three losses by loops, and whether there is a hard negative."""
    truth, own = targets.truth.tolist(), targets.same_group.tolist()
    images, texts = range(len(truth)), range(len(truth[0]))
    captions = [j for j in texts if any(truth[i][j] for i in images)]
    e = [[math.exp(x) for x in row] for row in values.tolist()]
    vectors = scored(values).embedded.text
    to_text, to_image, negatives, order = [], [], [], []
    for i in images:
        true = [j for j in texts if truth[i][j]]
        false = [e[i][k] for k in captions if not truth[i][k]]
        if true:
            to_text.append(mean(contrast(e[i][j], false) for j in true))
        hard = [e[i][k] for k in texts if own[i][k] and not truth[i][k]]
        if true and hard:
            negatives.append(mean(contrast(e[i][j], hard) for j in true))
        mine = [j for j in true if own[i][j]]
        pairs = [(j, k) for j in mine for k in mine if j < k]
        if pairs:
            order.append(mean((vectors[j] - vectors[k]).square().sum().item() for j, k in pairs))
    for j in captions:
        false = [e[k][j] for k in images if not truth[k][j]]
        to_image.append(mean(contrast(e[i][j], false) for i in images if truth[i][j]))
    any_hard = bool((targets.same_group & ~targets.truth).any())
    return (mean(to_text) + mean(to_image)) / 2, mean(negatives), mean(order), any_hard


@pytest.mark.parametrize("seed", range(6))
def test_equals_the_loops(seed):
    values, targets = random_values(seed), random_targets(seed)
    parts = naive(values, targets)
    assert parts[3]
    for factors in ((0.5, 0.5, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        named = dict(zip(("contrast", "negatives", "order"), factors, strict=True))
        want = sum(a * b for a, b in zip(factors, parts[:3], strict=True))
        assert CLIC(**named)(scored(values), targets).item() == pytest.approx(want, abs=1e-10)


def test_texts_of_other_groups_have_no_order():
    values = random_values(1, (1, 4))
    truth = torch.tensor([[True, True, True, False]])
    own = torch.tensor([[True, True, False, True]])
    vectors = scored(values).embedded.text
    want = (vectors[0] - vectors[1]).square().sum()
    order = CLIC(contrast=0.0, negatives=0.0)
    torch.testing.assert_close(order(scored(values), Targets(truth, own, own)), want)
    assert order(scored(values), same(truth)) != want
