import math

import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics import paired_difference, seeded_difference
from vlmtune.metrics.item_groups import ItemGroups


def outcomes(rates, n=200, seed=0):
    """Right and wrong answers of a model for each rate."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(len(rates), n, generator=generator) < torch.tensor(rates)[:, None]).double()


def test_one_seed_each_is_the_test_of_the_items():
    new, old = outcomes([0.7]), outcomes([0.5], seed=1)
    clusters = torch.arange(200) // 2
    got = seeded_difference(new, old, clusters)
    items = paired_difference(new[0], old[0], clusters)
    assert (got.low, got.high, got.p) == pytest.approx((items.low, items.high, items.p))
    assert got.difference == pytest.approx(float(new.mean() - old.mean()))
    assert got.won == int((new > old).sum())
    assert got.lost == int((new < old).sum())


def test_seeds_that_agree_are_a_difference_and_others_are_none():
    """The items alone would be sure: 2000 of them, and a mean higher by 14 points."""
    new, old = outcomes([0.9, 0.5, 0.52], 2000), outcomes([0.5, 0.5, 0.5], 2000, 1)
    assert paired_difference(new.mean(dim=0), old.mean(dim=0)).p < 0.01
    got = seeded_difference(new, old)
    assert got.p > 0.05
    assert got.low < 0 < got.high
    got = seeded_difference(outcomes([0.9, 0.88, 0.91]), outcomes([0.5, 0.52, 0.48], seed=1))
    assert got.p < 0.01
    assert got.low > 0.2


def test_the_width_is_that_of_the_two_variances():
    generator = torch.Generator().manual_seed(3)
    seeds, n, between, within = 8, 400, 0.2, 1.0
    shift = between * torch.randn(seeds, 1, generator=generator, dtype=torch.float64)
    item = within * torch.randn(1, n, generator=generator, dtype=torch.float64)
    new, old = shift + item, torch.zeros(1, n, dtype=torch.float64)
    over_items = 1.966 * float(item.std()) / math.sqrt(n)
    for varies, factor in ((False, 1 / seeds), (True, 1 / seeds + 1)):
        got = seeded_difference(new, old, varies=(True, varies))
        over_seeds = 2.365 * float(shift.std()) * math.sqrt(factor)
        want = 2 * math.hypot(over_items, over_seeds)
        assert got.high - got.low == pytest.approx(want, rel=1e-3)
    # Two recipes of several seeds: their variance is pooled, with S + R - 2 degrees of freedom.
    same = seeded_difference(new, new[:3])
    assert seeded_difference(new, new[:3], varies=(True, False)) == same  # seeds show that it does
    pooled = math.sqrt((7 * float(shift.var()) + 2 * float(shift[:3].var())) / 9)
    want = 2.262 * pooled * math.sqrt(1 / 8 + 1 / 3)
    assert (same.high - same.low) / 2 == pytest.approx(want, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "others"), [(3, 1), (2, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize("varies", [True, False])
def test_true_nulls_are_rarely_rejected(seeds, others, varies):
    """Accuracies of two equal recipes, whose seeds differ by some 5 points."""
    generator = torch.Generator().manual_seed(seeds + 10 * others)

    def runs(count, hardness, deviation):
        shift = deviation * torch.randn(count, 1, generator=generator)
        noise = torch.randn(count, len(hardness), generator=generator)
        return (hardness + shift + noise > 0).double()

    rejected, trials = 0, 300
    for _ in range(trials):
        hardness = 0.8 * torch.randn(400, generator=generator)
        new = runs(seeds, hardness, 0.15)
        old = runs(others, hardness, 0.15 if varies or others > 1 else 0.0)
        rejected += seeded_difference(new, old, varies=(True, varies)).p < 0.05
    assert rejected / trials <= 0.08


def test_means_over_groups_are_weighted():
    new = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    old = torch.zeros(1, 4)
    groups = ItemGroups(torch.tensor([0, 0, 1, -1]), torch.tensor([1.0, 3.0]))
    got = seeded_difference(new, old, groups=groups)
    # (1 * 0.75 + 3 * 0) / 4; the last item has no group.
    assert got.difference == pytest.approx(0.1875)
    assert (got.won, got.lost, got.n) == (2, 0, 3)


def test_one_cluster_has_no_interval_and_nan_raises():
    got = seeded_difference(torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    assert (got.low, got.high, got.p) == (None, None, None)
    with refused("finite values"):
        seeded_difference(torch.full((2, 3), math.nan), torch.zeros(1, 3))
    with refused("finite values"):
        seeded_difference(torch.zeros(2, 0), torch.zeros(1, 0))


def test_runs_that_belong_together_are_drawn_together():
    """Runs vary by 40 points, both models alike: pairs remove it, runs drawn apart do not."""
    old = outcomes([0.3, 0.5, 0.7], 2000)
    new = old.clone()
    new[:, :100] = 1.0
    pairs, apart = (seeded_difference(new, old, paired=x) for x in (True, False))
    assert pairs.difference == apart.difference
    assert (pairs.test, apart.test) == ("runs and items", "seeds and items")
    assert pairs.high - pairs.low < 0.05 < apart.high - apart.low
    assert 0 < pairs.low < pairs.difference < pairs.high
    one, items = seeded_difference(new[:1], old[:1], paired=True), paired_difference(new[0], old[0])
    assert (one.low, one.high) == pytest.approx((items.low, items.high))
    same = seeded_difference(old, old, paired=True)
    assert (same.difference, same.low, same.high, same.p) == (0, None, None, 1)
