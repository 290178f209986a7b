import math

import pytest
import torch

from tests.scored import naive_contrast, random_computed, random_targets, random_values, same
from vlmtune.objectives.itm import ITM
from vlmtune.types import Scores


def naive_matching(values, computed, truth):
    losses = []
    for i, j in computed.nonzero().tolist():
        probability = 1 / (1 + math.exp(-values[i, j].item()))
        losses.append(-math.log(probability if truth[i, j] else 1 - probability))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("matching", "ranking"), [(1.0, 0.0), (0.0, 1.0), (0.5, 2.0)])
def test_equals_the_double_loop(seed, matching, ranking):
    values, computed, targets = random_values(seed), random_computed(seed), random_targets(seed)
    want = matching * naive_matching(values, computed, targets.truth)
    true, false = computed & targets.truth, computed & ~targets.truth
    want += ranking * naive_contrast(values, true, false)
    got = ITM(matching=matching, ranking=ranking)(Scores(values, computed), targets)
    assert got.item() == pytest.approx(want, abs=1e-12)


def test_an_own_caption_that_was_drawn_is_no_negative():
    truth = torch.tensor([[True, True, False]])
    loss = ITM(matching=0.0)(Scores.full(torch.zeros(1, 3)), same(truth))
    assert loss.item() == pytest.approx(math.log(2))
