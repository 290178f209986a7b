import pytest
import torch
from torch.nn.functional import one_hot

from tests.refusals import refused
from vlmtune.metrics import ranking


def test_ranks_agree_with_counting():
    scores = torch.randint(5, (40,), generator=torch.Generator().manual_seed(0)) / 7
    expected = [sum(y >= x for y in scores.tolist()) for x in scores.tolist()]
    assert ranking.pessimistic_ranks(scores).tolist() == expected
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(4, (50, 6), generator=generator).float()
    true = torch.randint(6, (50,), generator=generator)
    both = zip(scores.tolist(), true.tolist(), strict=True)
    expected = [sum(y >= row[t] for y in row) for row, t in both]
    assert ranking.true_ranks(scores, one_hot(true, 6) > 0).tolist() == expected


def test_the_best_true_candidate_counts_and_padding_is_none():
    scores = torch.tensor([[0.2, 0.1, -torch.inf]])
    assert ranking.true_ranks(scores, torch.tensor([[False, True, False]])).tolist() == [2]
    scores = torch.tensor([[0.2, 0.9, 0.5], [0.2, 0.5, 0.5], [0.2, 0.9, 0.5]])
    true = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])
    for ties in ("wrong", "first"):
        assert ranking.true_ranks(scores, true, ties).tolist() == [1, 1, 4]


def test_mean_ranks_and_bad_input():
    scores = torch.tensor([0.9, 0.8, 0.8, 0.1])
    assert ranking.mean_ranks(scores, torch.tensor([1, 1, 0, 0]).bool()) == (2.0, 3.5)
    # ranks without ties are 1..n, so the two means are tied to each other
    generator = torch.Generator().manual_seed(4)
    positives = torch.arange(30) < 10
    true, distractor = ranking.mean_ranks(
        torch.randperm(30, generator=generator).float(), positives
    )
    assert true * 10 + distractor * 20 == pytest.approx(30 * 31 / 2)
    with refused("NaN"):
        ranking.pessimistic_ranks(torch.tensor([0.1, torch.nan]))
    for ties in ("wrong", "first"):
        with refused("1 of 2 are NaN"):
            ranking.true_ranks(torch.tensor([[0.1, torch.nan]]), torch.eye(2)[:1] > 0, ties)


@pytest.mark.parametrize("seed", range(5))
def test_ties_in_order_against_pythons_stable_sort(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(4, (50, 7), generator=generator).double()
    true = torch.randint(7, (50,), generator=generator)
    naive = [
        sorted(range(7), key=lambda j: -row[j]).index(t) + 1
        for row, t in zip(scores.tolist(), true.tolist(), strict=True)
    ]
    ranks = ranking.true_ranks(scores, one_hot(true, 7) > 0, "first")
    assert ranks.tolist() == naive
    assert (ranks == 1).equal(scores.argmax(dim=1) == true)


def naive_f1(scores, positives):
    count = sum(positives)
    predicted = [sum(y >= x for y in scores) <= count for x in scores]
    hits = sum(p and t for p, t in zip(predicted, positives, strict=True))
    precision = hits / sum(predicted) if any(predicted) else 0.0
    recall = hits / count
    return 0.0 if hits == 0 else 2 * precision * recall / (precision + recall)


def test_f1_agrees_with_precision_and_recall():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        scores = torch.randint(8, (12,), generator=generator).float()
        positives = torch.rand(12, generator=generator) < 0.4
        if positives.any():
            expected = naive_f1(scores.tolist(), positives.tolist())
            assert ranking.f1_at_positives(scores, positives) == pytest.approx(expected)
