import pytest
import torch

from vlmtune.errors import UserError
from vlmtune.metrics.ranking import mean_ranks, pessimistic_ranks, recall_at, true_ranks


def test_ranks_agree_with_counting():
    scores = torch.randint(5, (40,), generator=torch.Generator().manual_seed(0)) / 7
    expected = [sum(y >= x for y in scores.tolist()) for x in scores.tolist()]
    assert pessimistic_ranks(scores).tolist() == expected


def test_true_ranks_agree_with_counting():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(4, (50, 6), generator=generator).float()
    true = torch.randint(6, (50,), generator=generator)
    expected = [
        sum(y >= row[t] for y in row) for row, t in zip(scores.tolist(), true.tolist(), strict=True)
    ]
    assert true_ranks(scores, true).tolist() == expected


@pytest.mark.parametrize("candidates", [2, 6, 17, 1000])
def test_constant_scorer_ranks_last(candidates):
    ranks = true_ranks(torch.zeros(1, candidates), torch.tensor([0]))
    assert ranks.tolist() == [candidates]
    assert not recall_at(ranks, candidates - 1).any()


def test_padding_with_minus_infinity_is_no_candidate():
    scores = torch.tensor([[0.2, 0.1, -torch.inf]])
    assert true_ranks(scores, torch.tensor([1])).tolist() == [2]


def test_mean_ranks():
    scores = torch.tensor([0.9, 0.8, 0.8, 0.1])
    assert mean_ranks(scores, torch.tensor([1, 1, 0, 0]).bool()) == (2.0, 3.5)
    # ranks without ties are 1..n, so the two means are tied to each other
    generator = torch.Generator().manual_seed(4)
    positives = torch.arange(30) < 10
    true, distractor = mean_ranks(torch.randperm(30, generator=generator).float(), positives)
    assert true * 10 + distractor * 20 == pytest.approx(30 * 31 / 2)


def test_bad_input_raises():
    with pytest.raises(UserError, match="one kind"):
        mean_ranks(torch.rand(3), torch.ones(3).bool())
    with pytest.raises(UserError, match="NaN"):
        pessimistic_ranks(torch.tensor([0.1, torch.nan]))
    with pytest.raises(UserError, match="NaN"):
        true_ranks(torch.tensor([[0.1, torch.nan]]), torch.tensor([0]))
