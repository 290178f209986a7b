import pytest
import torch
from scipy.optimize import linear_sum_assignment

from tests.refusals import refused
from vlmtune.metrics import paired_accuracy


def group_correct(scores):
    return paired_accuracy.image_correct(scores) & paired_accuracy.text_correct(scores)


def naive(scores, rule):
    correct = []
    for (a, b), (c, d) in scores.tolist():  # a = s[0,0], b = s[0,1], c = s[1,0], d = s[1,1]
        image, text = a > c and d > b, a > b and d > c
        correct.append({"image": image, "text": text, "group": image and text}[rule])
    return correct


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_agrees_with_naive_loop_under_ties(dtype):
    scores = torch.randint(4, (500, 2, 2), generator=torch.Generator().manual_seed(1)).to(dtype)
    assert paired_accuracy.image_correct(scores).tolist() == naive(scores, "image")
    assert paired_accuracy.text_correct(scores).tolist() == naive(scores, "text")
    assert group_correct(scores).tolist() == naive(scores, "group")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_matching_against_the_best_assignment(size):
    generator = torch.Generator().manual_seed(size)
    scores = torch.randint(4, (400, size, size), generator=generator).double()
    want = []
    for item in scores:
        totals = []
        for i in range(size):
            # Another matching misses at least one true pair.
            without = item.clone()
            without[i, i] = -1e6
            totals.append(without[linear_sum_assignment(without, maximize=True)].sum())
        want.append(bool(item.trace() > max(totals)))
    assert paired_accuracy.matching_correct(scores).tolist() == want
    # Of sums of a number of the image and one of the caption all matchings have the same total.
    images = torch.rand(500, size, 1, generator=generator)
    texts = torch.rand(500, 1, size, generator=generator)
    assert not paired_accuracy.matching_correct(images + texts).any()
    drawn = torch.rand(50_000, size, size, generator=generator)
    reached = float(paired_accuracy.matching_correct(drawn).double().mean())
    assert reached == pytest.approx(paired_accuracy.matching_chance(size), abs=0.01)


def test_random_scores_reach_the_declared_chance():
    scores = torch.rand(100_000, 2, 2, generator=torch.Generator().manual_seed(3))
    for rule, chance in (
        (paired_accuracy.image_correct, paired_accuracy.IMAGE_CHANCE),
        (paired_accuracy.text_correct, paired_accuracy.TEXT_CHANCE),
        (group_correct, paired_accuracy.GROUP_CHANCE),
    ):
        assert float(rule(scores).double().mean()) == pytest.approx(chance, abs=0.006)


def test_nan_raises():
    scores = torch.zeros(3, 2, 2)
    scores[1, 0, 1] = torch.nan
    for rule in (paired_accuracy.image_correct, paired_accuracy.text_correct):
        with refused("1 of 12 are NaN"):
            rule(scores)


def test_equivariance_against_the_loss_it_is_the_deviation_of():
    # With t and m the two equations' gaps: t^2 + m^2 = 2 ((s11 - s22)^2 + (s12 - s21)^2).
    scores = torch.randn(50, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    text, image = paired_accuracy.equivariance_deviations(scores).T
    for i, ((a, b), (c, d)) in enumerate(scores.tolist()):
        assert text[i] == pytest.approx(abs((a - b) - (d - c)))
        assert image[i] == pytest.approx(abs((a - c) - (d - b)))
    gaps = (scores[:, 0, 0] - scores[:, 1, 1]) ** 2 + (scores[:, 0, 1] - scores[:, 1, 0]) ** 2
    assert torch.allclose(text**2 + image**2, 2 * gaps)
    right = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    assert paired_accuracy.equivariance_deviations(right).tolist() == [[0.0, 0.0]]
    assert paired_accuracy.equivariance_deviations(-right).tolist() == [[0.0, 0.0]]
    # The example of the paper's figure 8: s11 - s21 = -0.07 and s22 - s12 = 1.4.
    shown = torch.tensor([[[0.0, 0.0], [0.07, 1.4]]])
    assert paired_accuracy.equivariance_deviations(shown)[0, 1] == pytest.approx(1.47)
    with refused("NaN"):
        paired_accuracy.equivariance_deviations(torch.full((1, 2, 2), torch.nan))
