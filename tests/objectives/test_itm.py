import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tests.scored import naive_contrast, random_computed, random_targets, random_values, same
from vlmtune.objectives.itm import ITM
from vlmtune.objectives.pair_bce import PairBCE
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


def test_as_albef_one_true_pair_and_two_hard_negatives_per_image():
    values, eye = random_values(0, (4, 4)), torch.eye(4, dtype=torch.bool)
    computed = eye | eye.roll(1, dims=1) | eye.roll(2, dims=1)
    labels = eye[computed].double()
    want = binary_cross_entropy_with_logits(values[computed], labels)
    scores, targets = Scores(values, computed), same(eye)
    assert computed.sum() == 12
    torch.testing.assert_close(ITM(ranking=0.0)(scores, targets), want)
    torch.testing.assert_close(PairBCE()(scores, targets), want)


def test_as_meter_the_true_caption_among_sixteen():
    values = random_values(1, (3, 60))
    truth, computed = torch.zeros(3, 60, dtype=torch.bool), torch.zeros(3, 60, dtype=torch.bool)
    for i in range(3):
        truth[i, 16 * i] = True
        computed[i, 16 * i : 16 * i + 16] = True
    logits = torch.stack([values[i, 16 * i : 16 * i + 16] for i in range(3)])
    want = cross_entropy(logits, torch.zeros(3, dtype=torch.long))
    got = ITM(matching=0.0)(Scores(values, computed), same(truth))
    torch.testing.assert_close(got, want)


def test_an_own_caption_that_was_drawn_is_no_negative():
    truth = torch.tensor([[True, True, False]])
    loss = ITM(matching=0.0)(Scores.full(torch.zeros(1, 3)), same(truth))
    assert loss.item() == pytest.approx(math.log(2))
