import math
import statistics

import pytest
import torch

from tests.refusals import refused
from vlmtune.metrics import intervals


@pytest.mark.parametrize(("k", "n"), [(45, 210), (0, 10), (10, 10), (1, 3), (5000, 10000)])
def test_wilson_ends_are_one_and_a_half_sigma_tests_apart(k, n):
    # The ends are where the score test rejects: |p - end| = z sqrt(end (1 - end) / n).
    low, high = intervals.wilson_interval(k / n, n)
    z = statistics.NormalDist().inv_cdf(0.975)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(k / n - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n))
    assert 0 <= low <= k / n <= high <= 1
    assert low < high


def test_wilson_published_value():
    # Newcombe 1998, table I: 81 of 263, method 3.
    assert intervals.wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_bootstrap_is_seeded_leaves_global_state_and_covers():
    values = torch.rand(300, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    interval = intervals.bootstrap_interval(values)
    assert torch.equal(state, torch.get_rng_state())
    assert intervals.bootstrap_interval(values) == interval
    assert intervals.bootstrap_interval(values, seed=1) != interval
    half = 1.96 * float(values.std()) / math.sqrt(300)
    mean = float(values.mean())
    assert interval == pytest.approx((mean - half, mean + half), abs=0.004)


def test_a_single_value_has_no_interval_and_none_is_refused():
    single = intervals.bootstrap_mean(torch.tensor([0.5]))
    assert (single.value, single.low, single.high) == (0.5, None, None)
    with refused("got 0 values"):
        intervals.bootstrap_mean(torch.zeros(0))
    with refused("finite values"):
        intervals.bootstrap_interval(torch.tensor([1.0, torch.nan]))
