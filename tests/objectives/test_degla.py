import math

import pytest
import torch

from tests.refusals import refused
from tests.scored import embedded, naive_contrast, random_targets, random_values
from vlmtune.objectives.degla import DeGLA
from vlmtune.types import Scores


def case(seed, scale=10.0):
    values = random_values(seed, scale=scale)
    scores = Scores(values, torch.ones_like(values) > 0, embedded(values))
    other = embedded(values + random_values(50 + seed, scale=scale))
    return Scores(*(scores.values, scores.computed, scores.embedded), average=other)


def naive(scores, targets):
    """The three terms by loops over images and texts."""
    values, ours, theirs = scores.values, scores.embedded, scores.average
    true, false = targets.same_group & targets.truth, targets.same_group & ~targets.truth
    by_image = naive_contrast(values, true, false)
    by_text = []
    for i in range(len(values)):
        text_terms = []
        for j in true[i].nonzero()[:, 0].tolist():
            kept = ours.text[j] @ theirs.text[j]
            others = ours.text[false[i]] @ ours.text[j]
            text_terms.append(math.log(1 + sum(math.exp(10 * (x - kept)) for x in others)))
        if text_terms:
            by_text.append(sum(text_terms) / len(text_terms))
    squares = 0.0
    for a, b in ((ours.image, theirs.image), (ours.text, theirs.text)):
        squares += sum(((x - y) ** 2).sum().item() for x, y in zip(a, b, strict=True))
    return by_image, sum(by_text) / len(by_text), squares / len(values)


@pytest.mark.parametrize("seed", range(4))
def test_each_term_equals_the_loops(seed):
    scores, targets = case(seed), random_targets(seed)
    want = naive(scores, targets)
    for number, term in enumerate(want):
        factors = [0.0, 0.0, 0.0]
        factors[number] = 2.0
        loss = DeGLA(1.0, *factors)(scores, targets)
        assert loss.item() == pytest.approx(2 * term, rel=1e-9)
        assert term > 0.01
    weighed = 0.1 * want[0] + 0.1 * want[1] + 0.16 * want[2]
    assert DeGLA()(scores, targets).item() == pytest.approx(weighed, rel=1e-9)


def test_a_model_that_equals_its_average_pays_for_its_negatives_alone():
    scores, targets = case(0), random_targets(0)
    same = Scores(scores.values, scores.computed, scores.embedded, average=scores.embedded)
    assert DeGLA(1.0, 0.0, 0.0, 1.0)(same, targets) == 0
    assert DeGLA()(same, targets) > 0
    alone = Scores(scores.values, scores.computed, scores.embedded)
    with refused("expected embeddings by a moving average for DeGLA, got none"):
        DeGLA()(alone, targets)
