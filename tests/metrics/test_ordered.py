import pytest
import torch

from vlmtune.errors import UserError
from vlmtune.metrics.ordered import ordered_ranks


@pytest.mark.parametrize("seed", range(5))
def test_against_python_s_stable_sort(seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(4, (50, 7), generator=generator).double()
    true = torch.randint(7, (50,), generator=generator)
    naive = [
        sorted(range(7), key=lambda j: -row[j]).index(t) + 1
        for row, t in zip(scores.tolist(), true.tolist(), strict=True)
    ]
    ranks = ordered_ranks(scores, true)
    assert ranks.tolist() == naive
    assert (ranks == 1).equal(scores.argmax(dim=1) == true)


def test_nan_is_refused():
    with pytest.raises(UserError, match="1 of 2 are NaN"):
        ordered_ranks(torch.tensor([[0.0, torch.nan]]), torch.tensor([0]))
