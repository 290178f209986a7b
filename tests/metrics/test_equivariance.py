import itertools
import math

import pytest
import torch

from tests.benchmarks.models import cosine
from tests.refusals import refused
from vlmtune.metrics.cluster_robust import mean_cosine
from vlmtune.metrics.equivariance import agreement, alignment, paired_alignment


@pytest.fixture
def vectors():
    return torch.randn(9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_alignment_is_the_mean_over_all_pairs_also_of_zero_length(vectors):
    for scale in (1, 0):
        vectors[2] *= scale
        rows = vectors.tolist()
        pairs = [cosine(a, b) for a, b in itertools.combinations(rows, 2)]
        assert float(alignment(vectors).mean()) == pytest.approx(sum(pairs) / len(pairs))
        third = [cosine(rows[3], row) for i, row in enumerate(rows) if i != 3]
        assert float(alignment(vectors)[3]) == pytest.approx(sum(third) / 8)
    assert alignment(torch.zeros(4, 3)).tolist() == [0.0] * 4
    assert agreement(torch.zeros(1, 2), torch.ones(1, 2)).tolist() == [0.0]


def test_the_same_change_for_all_gives_one_whatever_its_length():
    same = torch.tensor([[1.0, 2.0], [2.0, 4.0], [0.5, 1.0]])
    assert alignment(same).tolist() == pytest.approx([1.0] * 3)
    assert agreement(same, 3 * same).tolist() == pytest.approx([1.0] * 3)
    assert agreement(same, -same).tolist() == pytest.approx([-1.0] * 3)


def test_random_pairs_are_pairs_of_two_and_estimate_the_mean_over_all(vectors):
    rows = vectors.tolist()
    means = []
    for seed in range(200):
        cosines = paired_alignment(vectors, torch.Generator().manual_seed(seed))
        for i, value in enumerate(cosines.tolist()):
            others = [cosine(rows[i], row) for j, row in enumerate(rows) if j != i]
            assert min(abs(value - other) for other in others) < 1e-12
        means.append(float(cosines.mean()))
    spread = torch.tensor(means).std() / math.sqrt(200)
    assert abs(sum(means) / 200 - float(alignment(vectors).mean())) < 4 * float(spread)
    again = paired_alignment(vectors, torch.Generator().manual_seed(3))
    assert float(again.mean()) == means[3]


def test_one_sample_has_no_pair_and_nan_raises():
    assert alignment(torch.ones(1, 3)).isnan().all()
    with refused("finite values"):
        mean_cosine(torch.tensor([torch.nan]), torch.tensor([0]))
    with refused("finite values"):
        mean_cosine(torch.zeros(0), torch.zeros(0).long())


def test_the_interval_of_a_mean_is_students():
    values = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 2
    metric = mean_cosine(values, torch.arange(40))
    half = 2.022691 * float(values.std()) / math.sqrt(40)
    assert metric.chance == 0.0
    assert metric.low == pytest.approx(metric.value - half)
    assert metric.high == pytest.approx(metric.value + half)
    doubled = torch.cat([values, values])
    together = mean_cosine(doubled, torch.arange(40).repeat(2))
    assert together.low == pytest.approx(metric.low)
    assert mean_cosine(values, torch.zeros(40).long()).low is None


def test_the_interval_over_pairs_covers():
    # The mean over pairs of n draws, 300 times: how often does the interval hold its expectation?
    generator = torch.Generator().manual_seed(0)
    centre = torch.tensor([1.0, 0.5, 0.0, 0.0])
    big = centre + torch.randn(20000, 4, generator=generator)
    expected = float(alignment(big).mean())
    covered = 0
    for _ in range(300):
        values = alignment(centre + torch.randn(60, 4, generator=generator))
        metric = mean_cosine(values, torch.arange(60), degree=2)
        assert metric.low is not None
        assert metric.high is not None
        covered += metric.low <= expected <= metric.high
    assert 0.91 <= covered / 300 <= 0.99
