import math

import pytest
import torch

from tests.refusals import refused
from tests.scored import (
    CUTS,
    assert_shares_add_up,
    embedded,
    random_targets,
    random_values,
    softmax,
)
from vlmtune.objectives.rank_kl import RankKL
from vlmtune.types import Scores


def naive_side(cosines, teacher, listed, temperature, teacher_temperature):
    terms = []
    for i in range(len(cosines)):
        candidates = [j for j in range(cosines.shape[1]) if listed[i, j]]
        if len(candidates) < 2:
            continue
        ours = softmax([cosines[i, j].item() / temperature for j in candidates])
        theirs = softmax([teacher[i, j].item() / teacher_temperature for j in candidates])
        terms.append(sum(t * math.log(t / p) for p, t in zip(ours, theirs, strict=True)))
    return sum(terms) / len(terms) if terms else 0.0


def case(seed, bias=0.0):
    """Scores of large range, with a teacher that scored the pairs of each group alone."""
    targets = random_targets(seed)
    values = random_values(seed, scale=300.0)
    teacher = Scores(random_values(50 + seed, scale=3.0), targets.same_group)
    scores = Scores(values + bias, torch.ones_like(targets.truth), embedded(values), None, teacher)
    return scores, targets


@pytest.mark.parametrize("by_text", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_the_divergence_equals_the_double_loop(seed, temperature, by_text):
    scores, targets = case(seed)
    inside = scores.embedded
    cosines = inside.image @ inside.text.T
    matrices = cosines, scores.teacher.values, targets.same_group
    temperatures = temperature, 2.0
    want = naive_side(*matrices, *temperatures)
    if by_text:
        want += naive_side(*(matrix.T for matrix in matrices), *temperatures)
    objective = RankKL(temperature=temperature, teacher_temperature=2.0, by_text=by_text)
    assert objective(scores, targets).item() == pytest.approx(want, rel=1e-9)
    assert want > 0.01


def test_the_whole_batch_is_one_list():
    scores, targets = case(0)
    everything = torch.ones_like(targets.truth)
    teacher = Scores.full(scores.teacher.values)
    whole = Scores(scores.values, everything, scores.embedded, None, teacher)
    cosines = scores.embedded.image @ scores.embedded.text.T
    objective = RankKL(whole_batch=True)
    want = naive_side(cosines, teacher.values, everything, 0.05, 1.0)
    assert objective(whole, targets).item() == pytest.approx(want, rel=1e-9)
    assert "teacher_batch" in objective.needs - RankKL().needs
    # Texts of other ranks have no score of the teacher.
    near = torch.arange(9) < 6
    here = Scores(teacher.values, near.expand(everything.shape))
    part = Scores(scores.values, everything, scores.embedded, None, here)
    want = naive_side(cosines, teacher.values, here.computed, 0.05, 1.0)
    assert objective(part, targets).item() == pytest.approx(want, rel=1e-9)


def test_a_bias_of_all_scores_does_not_count_and_a_teacher_must_be_there():
    scores, targets = case(1)
    biased, _ = case(1, bias=100.0)
    torch.testing.assert_close(RankKL()(biased, targets), RankKL()(scores, targets))
    scores, targets = case(0)
    alone = Scores(scores.values, scores.computed, scores.embedded)
    with refused("expected a teacher's scores for RankKL, got none: set model.teacher"):
        RankKL()(alone, targets)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_add_up_where_the_teacher_scored_groups_alone(seed):
    scores, targets = case(seed)
    scores.values.requires_grad_()
    assert_shares_add_up(RankKL(by_text=True), scores, targets, CUTS)
