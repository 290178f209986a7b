import math

import pytest
import torch
from torch.nn.functional import normalize

from tests.scored import random_targets
from vlmtune.objectives.ce_clip import CEClip
from vlmtune.types import Embedded, Scores, Targets

SCALE = 5.0


def scores(seed, shape=(5, 9), bias=0.0):
    generator = torch.Generator().manual_seed(seed)
    image, text = (
        normalize(
            torch.randn(n, 4, generator=generator, dtype=torch.float64), dim=1
        ).requires_grad_()
        for n in shape
    )
    values = SCALE * image @ text.T + bias
    whole = Embedded(image, text, torch.tensor(SCALE, dtype=torch.float64))
    return Scores(values, torch.ones_like(values, dtype=torch.bool), whole)


def naive_intra(given, targets):
    whole, truth = given.embedded, targets.truth
    hard = targets.same_group & ~truth
    pool = {k for _, k in hard.nonzero().tolist()}
    terms = []
    for i, j in truth.nonzero().tolist():
        own = math.exp(SCALE * (whole.image[i] @ whole.text[j]).item())
        close = [(whole.text[j] @ whole.text[k]).item() for k in pool if not truth[i, k]]
        terms.append(-math.log(own / (own + sum(math.exp(SCALE * x) for x in close))))
    return sum(terms) / len(terms)


def gaps(given, targets):
    return [
        (given.values[i, j] - given.values[i, k]).item()
        for i, j in targets.truth.nonzero().tolist()
        for k in (targets.same_group & ~targets.truth)[i].nonzero().flatten().tolist()
    ]


def mean(numbers):
    return sum(numbers) / len(numbers)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bias", [0.0, -3.0])
def test_equals_the_double_loop_over_several_steps(seed, bias):
    objective, threshold = CEClip(intra_modal=0.3, rank=0.7, upper=2.0), 0.0
    for step in range(3):
        given, targets = scores(10 * seed + step, bias=bias), random_targets(10 * seed + step)
        found = gaps(given, targets)
        ranked = mean([max(0.0, threshold - gap) for gap in found])
        want = 0.3 * naive_intra(given, targets) + 0.7 * ranked
        assert objective(given, targets).item() == pytest.approx(want, abs=1e-6)
        threshold = min(max(mean(found), 0.0), 2.0)
        assert objective.threshold.item() == pytest.approx(threshold, abs=1e-6)


def test_the_threshold_is_part_of_the_state_and_has_a_largest_and_a_least_value():
    given, targets = scores(2), random_targets(2)
    objective = CEClip(upper=3.0)
    objective.threshold.fill_(1.5)
    objective.eval()
    first, again = (objective(given, targets) for _ in range(2))
    assert first == again
    assert objective.threshold == 1.5
    other = CEClip(upper=3.0)
    other.load_state_dict(objective.state_dict())
    assert other.eval()(given, targets) == first
    truth, own = torch.tensor([[True, False]]), torch.tensor([[True, True]])
    targets = Targets(truth, own, own)
    for gap, want in ((50.0, 10.0), (-50.0, 0.0), (4.0, 4.0)):
        values = torch.tensor([[gap, 0.0]])
        whole = Embedded(torch.ones(1, 1), torch.ones(2, 1), torch.ones(()))
        objective = CEClip()
        objective(Scores(values, torch.ones(1, 2) > 0, whole), targets)
        assert objective.threshold == want
        objective(Scores(values, torch.ones(1, 2) > 0, whole), Targets(truth, own, truth))
        assert objective.threshold == want  # a step without hard negatives has no gap
