import math

import pytest
import torch

from tests.refusals import refused
from tests.scored import CUTS, assert_shares_add_up, embedded, random_targets, random_values, scored
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
    by_image, by_text = [], []
    for i in range(len(values)):
        own = [j for j in range(values.shape[1]) if targets.same_group[i, j]]
        true = [j for j in own if targets.truth[i, j]]
        false = [j for j in own if not targets.truth[i, j]]
        image_terms, text_terms = [], []
        for j in true:
            gaps = [(values[i, k] - values[i, j]).item() for k in false]
            image_terms.append(math.log(1 + sum(math.exp(gap) for gap in gaps)))
            kept = ours.text[j] @ theirs.text[j]
            gaps = [10 * (ours.text[j] @ ours.text[k] - kept).item() for k in false]
            text_terms.append(math.log(1 + sum(math.exp(gap) for gap in gaps)))
        if true:
            by_image.append(sum(image_terms) / len(true))
            by_text.append(sum(text_terms) / len(true))
    squares = 0.0
    for a, b in ((ours.image, theirs.image), (ours.text, theirs.text)):
        squares += sum(((x - y) ** 2).sum().item() for x, y in zip(a, b, strict=True))
    return sum(by_image) / len(by_image), sum(by_text) / len(by_text), squares / len(values)


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


@pytest.mark.parametrize("seed", range(3))
def test_ranks_add_up_where_groups_cross_them(seed):
    values, targets = random_values(seed).requires_grad_(), random_targets(seed)
    assert_shares_add_up(DeGLA(), scored(values), targets, CUTS)


def test_a_model_that_equals_its_average_pays_for_its_negatives_alone():
    scores, targets = case(0), random_targets(0)
    same = Scores(scores.values, scores.computed, scores.embedded, average=scores.embedded)
    assert DeGLA(1.0, 0.0, 0.0, 1.0)(same, targets) == 0
    assert DeGLA()(same, targets) > 0
    alone = Scores(scores.values, scores.computed, scores.embedded)
    with refused("expected embeddings by a moving average for DeGLA, got none"):
        DeGLA()(alone, targets)
