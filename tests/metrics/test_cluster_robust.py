import math
import random

import pytest
import scipy.stats
import torch

from tests.refusals import refused
from vlmtune.metrics.cluster_robust import (
    cluster_robust_mean,
    cluster_robust_rank,
    connected_components,
    macro_mean,
)
from vlmtune.metrics.cluster_variance import cluster_variance, degrees_of_freedom
from vlmtune.metrics.intervals import Z95, wilson_interval


def test_independent_items_have_wilsons_interval_and_none_a_narrower_one():
    wins = torch.tensor([1.0] * 45 + [0.0] * 165)
    metric = cluster_robust_mean(wins, torch.arange(210), 0.25)
    assert (metric.low, metric.high) == pytest.approx(wilson_interval(45 / 210, 210))
    assert (metric.value, metric.n, metric.chance) == (45 / 210, 210, 0.25)
    # Images with one right and one wrong item each: the totals do not vary at all.
    wins = torch.tensor([1.0, 0.0] * 50)
    metric = cluster_robust_mean(wins, torch.arange(50).repeat_interleave(2))
    low, high = wilson_interval(0.5, 100)
    assert metric.low <= low + 1e-12
    assert metric.high >= high - 1e-12


def test_copies_of_an_item_add_no_certainty():
    wins = torch.tensor([1.0] * 12 + [0.0] * 18)
    once = cluster_robust_mean(wins, torch.arange(30))
    copies = cluster_robust_mean(wins.repeat(20), torch.arange(30).repeat(20))
    assert copies.value == once.value
    # How much 30 clusters vary is itself uncertain; of 30 single items the law is known.
    assert copies.low == pytest.approx(once.low, abs=0.01)
    assert copies.high == pytest.approx(once.high, abs=0.01)
    assert (once.clusters, copies.clusters) == (30, 30)
    apart = cluster_robust_mean(wins.repeat(20), torch.arange(600))
    assert apart.high - apart.low < 0.3 * (copies.high - copies.low)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_at_the_ends_an_image_counts_once(value):
    metric = cluster_robust_mean(torch.full((40,), value), torch.arange(10).repeat(4))
    assert (metric.low, metric.high) == pytest.approx(wilson_interval(value, 10))


def test_ten_clusters_by_hand():
    # Totals of ten images with four items each, of which 4 or 2 are right: p = 0.75.
    wins = torch.tensor([[1.0] * 4, [1.0, 1.0, 0.0, 0.0]] * 5).flatten()
    metric = cluster_robust_mean(wins, torch.arange(10).repeat_interleave(4))
    # Each mean is 0.25 off: V = 10 / 9 * 10 * 0.025^2 = 0.00694, D = 39 * V / 0.1875 = 1.444;
    # T = (2.2622 / 2.0227)^2 = 1.2508; 40 / (D T) = 22.14 items.
    low, high = wilson_interval(0.75, 22.14)
    assert (metric.low, metric.high) == pytest.approx((low, high), abs=1e-4)
    # Ten images never say more than ten items that are all right: 10 / (10 + 1.96^2).
    wins = torch.ones(400)
    wins[0] = 0
    metric = cluster_robust_mean(wins, torch.arange(10).repeat_interleave(40))
    assert metric.low == pytest.approx(0.7225, abs=1e-4)


@pytest.mark.parametrize("sizes", [[1, 1], [5, 5, 5], [7, 2, 1], [40, 1, 1, 1, 1, 3]])
def test_degrees_of_freedom_are_those_of_the_covariance(sizes):
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    count = len(shares)
    # Of each cluster the total of its deviations, as weights on the means of all clusters.
    weights = shares[:, None] * (torch.eye(count) - shares[None, :]) / (1 - shares[:, None]).sqrt()
    covariance = weights @ weights.T
    expected = covariance.trace() ** 2 / (covariance @ covariance).trace()
    assert degrees_of_freedom(shares) == pytest.approx(float(expected))


@pytest.mark.parametrize("seed", [0, 4, 12])  # captions, images and their sum vary most
def test_two_ways_are_both_less_what_they_share(seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(60, generator=generator, dtype=torch.float64)
    ways = torch.stack([torch.randint(k, (60,), generator=generator) for k in (12, 5)], dim=1)
    shares = torch.full((60,), 1 / 60, dtype=torch.float64)
    deviations = shares * (values - values.mean())
    cells = ways[:, 0] * 5 + ways[:, 1]
    image, caption, cell = (
        cluster_variance(deviations, shares, x) for x in (*ways.unbind(1), cells)
    )
    both = cluster_variance(deviations, shares, ways)
    value = image.value + caption.value - cell.value
    assert both.value == pytest.approx(max(value, image.value, caption.value))
    assert both.freedom == min(image.freedom, caption.freedom)
    assert both.clusters == 5


def test_one_set_of_captions_says_what_one_item_does():
    ways = torch.stack([torch.arange(50), torch.zeros(50, dtype=torch.int64)], dim=1)
    metric = cluster_robust_mean(torch.tensor([1.0, 0.0] * 25), ways)
    assert (metric.low, metric.high) == pytest.approx(wilson_interval(0.5, 1), abs=0.2)
    assert metric.clusters == 1
    assert metric.high - metric.low > 0.85


@pytest.mark.parametrize("sizes", [[1000] + [1] * 9, [1, 2, 4, 8, 16] * 10, [20] * 30])
def test_macro_covers_the_true_mean_of_small_groups_and_single_items(sizes):
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(200):
        values = (torch.rand(len(groups), generator=generator) < 0.5).double()
        metric = macro_mean(values, groups, torch.arange(len(groups)))
        covered += metric.low <= 0.5 <= metric.high
    assert covered >= 184


def test_macro_against_a_loop():
    rng = random.Random(2)
    groups = [rng.randint(0, 5) for _ in range(200)]
    clusters = [rng.randint(0, 60) for _ in groups]
    values = [float(rng.random() < (0.3 if c % 2 else 0.8)) for c in clusters]
    metric = macro_mean(torch.tensor(values), torch.tensor(groups), torch.tensor(clusters), 0.5)
    by_group: dict[int, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        by_group.setdefault(group, []).append(value)
    means = {group: sum(own) / len(own) for group, own in by_group.items()}
    mean = sum(means.values()) / 6
    assert metric.value == pytest.approx(mean)
    assert (metric.n, metric.chance) == (6, 0.5)
    totals, shares = dict.fromkeys(clusters, 0.0), dict.fromkeys(clusters, 0.0)
    for group, value, cluster in zip(groups, values, clusters, strict=True):
        size = len(by_group[group])
        deviation = (value - means[group]) * (size / (size - 1)) ** 0.5
        totals[cluster] += deviation / (6 * size)
        shares[cluster] += 1 / (6 * size)
    variance = sum(total**2 / (1 - shares[cluster]) for cluster, total in totals.items())
    design = 199 * variance / (mean * (1 - mean))
    freedom = degrees_of_freedom(torch.tensor(list(shares.values())))
    n = 200 / design / (scipy.stats.t.ppf(0.975, freedom) / scipy.stats.t.ppf(0.975, 199)) ** 2
    assert design > 1.2
    assert metric.clusters == len(totals)
    centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    assert (metric.low + metric.high) / 2 == pytest.approx(centre)
    values, groups = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 1, 2, -1])
    metric = macro_mean(values, groups, torch.arange(4))
    assert metric.value == pytest.approx(2 / 3)
    assert metric.n == 3
    low, high = wilson_interval(2 / 3, 3)
    assert metric.low <= low + 1e-9
    assert metric.high >= high - 1e-9
    # A group without weight says nothing, and neither does its image.
    weighted = macro_mean(values, groups, torch.arange(4), weights=torch.tensor([1.0, 1.0, 0.0]))
    assert (weighted.value, weighted.clusters) == (0.5, 2)


def test_ranks():
    ranks = torch.tensor([1.0, 2.0, 6.0, 3.0])
    metric = cluster_robust_rank(ranks, torch.arange(4), 3.5)
    half = 3.182446 * float(ranks.double().std()) / 2  # Student's, of 3 degrees of freedom
    assert (metric.value, metric.unit, metric.higher_is_better) == (3.0, "rank", False)
    assert metric.high == pytest.approx(3 + half)
    assert metric.low == pytest.approx(max(1, 3 - half))
    alone = cluster_robust_rank(ranks, torch.zeros(4, dtype=torch.int64))
    assert (alone.low, alone.high) == (None, None)


@pytest.mark.parametrize("values", [[], [0.5, 1.5], [-0.1], [math.nan]])
def test_values_outside_0_and_1_raise(values):
    values = torch.tensor(values)
    with refused(r"in \[0, 1\] to average"):
        cluster_robust_mean(values, torch.zeros(len(values), dtype=torch.int64))
    with refused():
        cluster_robust_rank(values, torch.zeros(len(values), dtype=torch.int64))


def test_a_long_chain_is_one_and_strangers_are_many():
    chain = torch.stack([torch.arange(5000), torch.arange(1, 5001)], dim=1)
    assert connected_components(chain).unique().tolist() == [0]
    assert connected_components(torch.arange(600).view(300, 2)).tolist() == list(range(300))
    assert connected_components(torch.zeros(0, 2, dtype=torch.int64)).tolist() == []
