import pytest
import torch

from tests.refusals import refused
from tests.scored import embedded, naive_divergence, random_targets, random_values
from vlmtune.objectives.rank_kl import RankKL
from vlmtune.types import Scores


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
    matrices = scores.teacher.values / 2, cosines / temperature, targets.same_group
    want = naive_divergence(*matrices, least=2)
    if by_text:
        want += naive_divergence(*(matrix.T for matrix in matrices), least=2)
    objective = RankKL(temperature=temperature, teacher_temperature=2.0, by_text=by_text)
    assert objective(scores, targets).item() == pytest.approx(want, rel=1e-9)
    assert want > 0.01


def test_the_whole_batch_is_one_list():
    scores, targets = case(0)
    everything = torch.ones_like(targets.truth)
    teacher = Scores.full(scores.teacher.values)
    whole = Scores(scores.values, everything, scores.embedded, None, teacher)
    logits = scores.embedded.image @ scores.embedded.text.T / 0.05
    objective = RankKL(whole_batch=True)
    want = naive_divergence(teacher.values, logits, everything)
    assert objective(whole, targets).item() == pytest.approx(want, rel=1e-9)
    assert "teacher_batch" in objective.needs - RankKL().needs
    # Texts of other ranks have no score of the teacher.
    near = torch.arange(9) < 6
    here = Scores(teacher.values, near.expand(everything.shape))
    part = Scores(scores.values, everything, scores.embedded, None, here)
    want = naive_divergence(teacher.values, logits, here.computed)
    assert objective(part, targets).item() == pytest.approx(want, rel=1e-9)


def test_a_bias_of_all_scores_does_not_count_and_a_teacher_must_be_there():
    scores, targets = case(1)
    biased, _ = case(1, bias=100.0)
    torch.testing.assert_close(RankKL()(biased, targets), RankKL()(scores, targets))
    scores, targets = case(0)
    alone = Scores(scores.values, scores.computed, scores.embedded)
    with refused("expected a teacher's scores for RankKL, got none: set model.teacher"):
        RankKL()(alone, targets)
