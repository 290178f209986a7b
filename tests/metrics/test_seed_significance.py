import math

import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.seed_significance import seeded_difference
from vlmtune.metrics.significance import paired_bootstrap


def outcomes(rates, n=200, seed=0):
    """Right and wrong answers of a model for each rate."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(len(rates), n, generator=generator) < torch.tensor(rates)[:, None]).double()


def test_one_seed_each_is_the_paired_bootstrap():
    new, old = outcomes([0.7]), outcomes([0.5], seed=1)
    clusters = torch.arange(200) // 2
    got = seeded_difference(new, old, clusters)
    low, high, p = paired_bootstrap(new[0] - old[0], clusters)
    assert (got.low, got.high, got.p) == pytest.approx((low, high, p))
    assert got.difference == pytest.approx(float(new.mean() - old.mean()))
    assert got.won == int((new > old).sum())
    assert got.lost == int((new < old).sum())


def test_seeds_that_disagree_are_no_difference():
    """The items alone would be sure: 2000 of them, and a mean higher by 14 points."""
    new, old = outcomes([0.9, 0.5, 0.52], 2000), outcomes([0.5, 0.5, 0.5], 2000, 1)
    items_alone = paired_bootstrap(new.mean(dim=0) - old.mean(dim=0), torch.arange(2000))
    assert items_alone[2] < 0.01
    got = seeded_difference(new, old)
    assert got.p > 0.05
    assert got.low < 0 < got.high


def test_seeds_that_agree_are_a_difference():
    got = seeded_difference(outcomes([0.9, 0.88, 0.91]), outcomes([0.5, 0.52, 0.48], seed=1))
    assert got.p < 0.01
    assert got.low > 0.2


def test_the_width_is_that_of_the_two_variances():
    """Against the sum of the variances of means over seeds and over items, for a normal law."""
    generator = torch.Generator().manual_seed(3)
    seeds, n, between, within = 8, 400, 0.2, 1.0
    shift = between * torch.randn(seeds, 1, generator=generator, dtype=torch.float64)
    item = within * torch.randn(1, n, generator=generator, dtype=torch.float64)
    new, old = shift + item, torch.zeros(1, n, dtype=torch.float64)
    got = seeded_difference(new, old, resamples=20_000)
    assert got.low is not None
    assert got.high is not None
    variance = float(shift.var()) / seeds + float(item.var(correction=0)) / n
    want = 2 * 1.96 * math.sqrt(variance)
    assert got.high - got.low == pytest.approx(want, rel=0.06)


def test_means_over_groups_are_weighted():
    new = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    old = torch.zeros(1, 4)
    groups = ItemGroups(torch.tensor([0, 0, 1, -1]), torch.tensor([1.0, 3.0]))
    got = seeded_difference(new, old, groups=groups)
    # (1 * 0.75 + 3 * 0) / 4; the last item has no group.
    assert got.difference == pytest.approx(0.1875)
    assert (got.won, got.lost, got.n) == (2, 0, 3)


def test_one_cluster_has_no_interval():
    got = seeded_difference(torch.ones(2, 3), torch.zeros(2, 3), torch.zeros(3, dtype=torch.long))
    assert (got.low, got.high, got.p) == (None, None, None)


def test_outcomes_that_are_none():
    with refused("finite outcomes"):
        seeded_difference(torch.full((2, 3), math.nan), torch.zeros(1, 3))
    with refused("items with finite outcomes"):
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
    (row,) = new[:1] - old[:1]
    one = seeded_difference(new[:1], old[:1], paired=True)
    assert (one.low, one.high, one.p) == pytest.approx(paired_bootstrap(row, torch.arange(2000)))
    same = seeded_difference(old, old, paired=True)
    assert (same.difference, same.low, same.high, same.p) == (0, None, None, 1)
