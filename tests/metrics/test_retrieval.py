import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics.retrieval import bank_ranks, hit_chance


def naive(scores, true, ties):
    """Rank of the best true partner of each row, by sorting a list."""
    ranks = []
    for row, values in enumerate(scores.tolist()):
        true_partners = {j for i, j in true.tolist() if i == row}
        if ties == "wrong":
            order = sorted(range(len(values)), key=lambda j: (-values[j], j in true_partners))
        else:
            order = sorted(range(len(values)), key=lambda j: (-values[j], j))
        ranks.append(1 + min(order.index(j) for j in true_partners))
    return ranks


def partners(n, m, generator):
    """Pairs such that every row and every column has at least one."""
    pairs = {(i, i % m) for i in range(n)} | {(j % n, j) for j in range(m)}
    more = torch.rand(n, m, generator=generator) < 0.2
    return torch.tensor(sorted(pairs | {tuple(pair) for pair in more.nonzero().tolist()}))


@pytest.mark.parametrize("ties", ["wrong", "first"])
@pytest.mark.parametrize("seed", range(20))
def test_against_sorting(seed, ties):
    generator = torch.Generator().manual_seed(seed)
    n, m = 1 + seed % 6, 2 + seed % 7
    scores = torch.randint(4, (n, m), generator=generator).float()
    true = partners(n, m, generator)
    by_row, by_column = bank_ranks(scores, true, ties)
    assert by_row.tolist() == naive(scores, true, ties)
    assert by_column.tolist() == naive(scores.T, true.flip(1), ties)


@pytest.mark.parametrize("ties", ["wrong", "first"])
def test_chunks_do_not_matter(monkeypatch, ties):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(5, (9, 7), generator=generator).double()
    true = partners(9, 7, generator)
    whole = bank_ranks(scores, true, ties)
    for size in (1, 15, 60):
        monkeypatch.setattr("vlmtune.metrics.retrieval.CHUNK", size)
        parts = bank_ranks(scores, true, ties)
        assert all(one.equal(other) for one, other in zip(whole, parts, strict=True))


def test_a_query_without_a_true_partner_and_a_false_score_that_is_nan_raise():
    scores = torch.zeros(2, 2)
    for true in ([[0, 0], [0, 1]], [[0, 0], [1, 0]]):
        with refused("a true partner for each"):
            bank_ranks(scores, torch.tensor(true))
    scores[0, 1] = torch.nan
    with refused("1 of 4 are NaN"):
        bank_ranks(scores, torch.tensor([[0, 0], [1, 1]]))


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_chance_is_what_random_scores_reach(k):
    generator = torch.Generator().manual_seed(k)
    for partners_, candidates in ((1, 6), (3, 6), (6, 6)):
        draws = torch.rand(4000, candidates, generator=generator).argsort(dim=1)
        hit = (draws[:, :k] < partners_).any(dim=1).double().mean()
        chance = hit_chance(torch.tensor([partners_]), candidates, k)
        assert float(chance) == pytest.approx(float(hit), abs=0.03)
