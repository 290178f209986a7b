import itertools
import math

import pytest
import scipy.stats
import torch

from tests.refusals import refused
from vlmtune.metrics.cluster_variance import degrees_of_freedom
from vlmtune.metrics.item_groups import ItemGroups
from vlmtune.metrics.significance import (
    difference_variance,
    interval_and_p,
    mcnemar,
    paired_difference,
)

FEW = itertools.product(range(7), repeat=2)
MANY = (480, 520), (0, 999), (501, 500), (40_000, 40_600)


@pytest.mark.parametrize(("won", "lost"), [*FEW, *MANY])
def test_mcnemar_is_the_exact_test_of_a_fair_coin(won, lost):
    expected = scipy.stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("copies", [1, 6])
def test_equal_clusters_are_students_test_of_their_means(copies):
    generator = torch.Generator().manual_seed(copies)
    means = torch.randn(8, generator=generator, dtype=torch.float64) + 0.5
    noise = torch.randn(8, copies, generator=generator, dtype=torch.float64)
    items = (means[:, None] + noise - noise.mean(dim=1, keepdim=True)).flatten()
    clusters = torch.arange(8).repeat_interleave(copies)
    result = paired_difference(items, torch.zeros_like(items), clusters)
    expected = scipy.stats.ttest_1samp(means.numpy(), 0)
    low, high = expected.confidence_interval()
    assert (result.low, result.high) == pytest.approx((low, high))
    assert (result.p, result.test) == (pytest.approx(expected.pvalue), "t")


def test_clusters_widen_the_interval():
    # Three images, all of whose items were won: no spread, but no certainty either.
    new, old = torch.ones(30), torch.zeros(30)
    result = paired_difference(new, old, torch.arange(3).repeat(10))
    assert result.low == pytest.approx(1 - 4.3027 / 6, abs=1e-4)  # t of 2 degrees, 1/2 of 1/3
    assert result.p == pytest.approx(0.0267, abs=1e-3)
    values = torch.tensor([1.0, 0.0, -1.0, 1.0, 0.0, 1.0, 1.0, -1.0]).repeat_interleave(10)
    none = torch.zeros(80)
    apart = paired_difference(values, none)
    eights = torch.arange(8).repeat_interleave(10)
    together = paired_difference(values, none, eights)
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert together.p > apart.p
    # As wide where the eight are captions and images of their own, or the other way round.
    for ways in ([torch.arange(80), eights], [eights, torch.arange(80)]):
        two_way = paired_difference(values, none, torch.stack(ways, dim=1))
        assert (two_way.low, two_way.high) == pytest.approx((together.low, together.high))


def test_its_p_is_rarely_small_where_there_is_no_difference():
    generator = torch.Generator().manual_seed(1)
    pairs = (torch.randint(2, (2, 60), generator=generator).double() for _ in range(120))
    p_values = [paired_difference(*pair).p for pair in pairs]
    assert sum(p < 0.05 for p in p_values) <= 10  # the exact test keeps its level: 5 % at most


@pytest.mark.parametrize("sign", [1, -1])
def test_right_or_wrong_on_images_of_their_own_is_mcnemars(sign):
    new = torch.tensor([1.0] * 9 + [0.0] * 2 + [1.0] * 5)
    old = torch.tensor([0.0] * 9 + [1.0] * 2 + [1.0] * 5)
    new, old = (new, old)[::sign]
    result = paired_difference(new, old)
    assert (result.won, result.lost, result.n) == ((9, 2, 16) if sign == 1 else (2, 9, 16))
    assert result.difference == pytest.approx(sign * 7 / 16)
    assert (result.test, result.p) == ("McNemar", mcnemar(9, 2))
    assert result.low < result.difference < result.high


def test_other_outcomes_are_students():
    new, old = torch.tensor([1.0, 0.5, 1.0, 0.0]), torch.tensor([0.0, 0.5, 0.0, 0.0])
    assert paired_difference(new, old).test == "t"
    shared = paired_difference(new.round(), old.round(), torch.tensor([0, 0, 1, 2]))
    assert shared.test == "t"
    assert shared.p is not None
    one = paired_difference(new, old, torch.zeros(4, dtype=torch.int64))
    assert (one.low, one.high, one.p) == (None, None, None)
    assert one.difference == 0.5


def test_equal_models_show_nothing_and_nan_raises():
    same = torch.tensor([1.0, 0.0, 0.5, 0.25])
    result = paired_difference(same, same)
    assert (result.difference, result.low, result.high, result.p) == (0.0, 0.0, 0.0, 1.0)
    assert (result.won, result.lost) == (0, 0)
    bounded = paired_difference(same, same, bound=1.0)
    expected = scipy.stats.binomtest(0, 4).proportion_ci(method="wilson").high
    assert (bounded.low, bounded.high) == pytest.approx((-expected, expected))
    assert bounded.p == 1.0
    # No model is ahead by more than everything.
    ahead, behind = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    few = paired_difference(ahead, behind, bound=1.0)
    assert (few.low, few.high) == (-1.0, 1.0)
    for values in (torch.zeros(0), torch.tensor([0.0, torch.nan])):
        with refused("finite values"):
            paired_difference(values, torch.zeros(len(values)))


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_mean_over_groups_has_the_weights_of_its_items(seed, degree):
    generator = torch.Generator().manual_seed(seed)
    new, old = torch.randint(2, (2, 30), generator=generator).double()
    clusters = torch.randint(12, (30,), generator=generator)
    members = torch.randint(-1, 4, (30,), generator=generator)
    group_weights = torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    result = paired_difference(new, old, clusters, ItemGroups(members, group_weights), degree)

    counted = members >= 0
    sizes = torch.bincount(members[counted])
    weights = (group_weights / sizes)[members[counted]]
    differences = (new - old)[counted]
    shares = weights / weights.sum()
    mean = float((shares * differences).sum())
    totals, sizes = {}, {}
    for share, value, cluster in zip(shares, differences, clusters[counted].tolist(), strict=True):
        totals[cluster] = totals.get(cluster, 0.0) + degree * float(share * (value - mean))
        sizes[cluster] = sizes.get(cluster, 0.0) + float(share)
    variance = sum(total**2 / (1 - sizes[cluster]) for cluster, total in totals.items())
    variance = max(variance, (degree * max(sizes.values()) / 2) ** 2)
    freedom = degrees_of_freedom(torch.tensor(list(sizes.values()), dtype=torch.float64))
    law = scipy.stats.t(freedom, mean, math.sqrt(variance))
    assert (result.low, result.high) == pytest.approx(law.interval(0.95))
    assert result.p == pytest.approx(2 * min(law.cdf(0), law.sf(0)))
    assert result.difference == pytest.approx(mean, abs=1e-12)
    assert (result.won, result.lost) == (int((differences > 0).sum()), int((differences < 0).sum()))
    assert (result.n, result.test) == (int(counted.sum()), "t")


def test_one_group_is_a_plain_mean_and_others_do_not_count():
    new = torch.tensor([1.0] * 9 + [0.0] * 2 + [1.0] * 5)
    old = torch.tensor([0.0] * 9 + [1.0] * 2 + [1.0] * 5)
    members = torch.tensor([0] * 11 + [-1] * 5)
    result = paired_difference(new, old, groups=ItemGroups(members))
    assert result == paired_difference(new[:11], old[:11])
    assert (result.test, result.n) == ("McNemar", 11)
    clusters = torch.arange(16) // 2
    shared = paired_difference(new, old, clusters, ItemGroups(members))
    assert shared == paired_difference(new[:11], old[:11], clusters[:11])
    with refused("finite values"):
        paired_difference(new, old, groups=ItemGroups(torch.full((16,), -1)))


def test_groups_of_one_item_are_not_taken_for_certain():
    # Equal models; a variance within groups would call 87 % of these differences shown.
    generator = torch.Generator().manual_seed(2)
    members = torch.cat([torch.arange(20), torch.arange(20, 23).repeat_interleave(40)])
    weights = ItemGroups(members).item_weights()
    shown = 0
    for _ in range(100):
        differences = torch.randint(-1, 2, (len(members),), generator=generator).double()
        variance = difference_variance(differences, torch.arange(len(members)), weights)
        mean = float((weights * differences).sum())
        shown += interval_and_p(mean, variance)[2] < 0.05
    assert shown <= 15
