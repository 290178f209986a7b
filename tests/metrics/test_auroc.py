import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics.auroc import auroc
from vlmtune.metrics.intervals import wilson_interval


def naive(true, false):
    wins = [(t > f) + 0.5 * (t == f) for t in true.tolist() for f in false.tolist()]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("levels", [3, 1000])
@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (30, 11)])
def test_against_all_pairs(levels, sizes):
    generator = torch.Generator().manual_seed(levels)
    true, false = (torch.randint(levels, (n,), generator=generator).float() for n in sizes)
    metric = auroc(true, false, torch.arange(sum(sizes)))
    assert metric.value == pytest.approx(naive(true, false))
    assert metric.chance == 0.5
    assert metric.n == sum(sizes)


@pytest.mark.parametrize(("n", "apart"), [(60, 1.0), (5, 2.3)])
def test_the_interval_covers_the_true_area(n, apart):
    # Normal scores so many standard deviations apart: A = Phi(apart / sqrt 2), .76 and .95.
    area = float(torch.special.ndtr(torch.tensor(apart * 0.5**0.5)))
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(300):
        true = torch.randn(n, generator=generator) + apart
        false = torch.randn(n, generator=generator)
        metric = auroc(true, false, torch.arange(2 * n))
        covered += metric.low <= area <= metric.high
    assert 0.91 <= covered / 300 <= 0.99


def test_repeated_scores_add_nothing_and_ends_and_errors():
    generator = torch.Generator().manual_seed(1)
    true, false = torch.randn(40, generator=generator), torch.randn(40, generator=generator)
    once = auroc(true, false, torch.arange(40).repeat(2))
    thrice = auroc(true.repeat(3), false.repeat(3), torch.arange(40).repeat(6))
    one, three = ((x.value, x.low, x.high) for x in (once, thrice))
    assert three == pytest.approx(one, rel=0.01)
    one = auroc(torch.ones(5), torch.zeros(5), torch.arange(10))
    assert (one.value, one.low, one.high) == (1.0, wilson_interval(1.0, 5)[0], 1.0)
    assert auroc(torch.ones(2), torch.ones(3), torch.arange(5)).value == 0.5
    alone = auroc(torch.ones(2), torch.zeros(2), torch.zeros(4, dtype=torch.int64))
    assert alone.low < 0.25
    assert alone.high == 1.0
    with refused("got 0 and 1"):
        auroc(torch.ones(0), torch.ones(1), torch.arange(1))
    with refused("NaN"):
        auroc(torch.tensor([torch.nan]), torch.ones(1), torch.arange(2))
