import math

import numpy as np
import pytest

from vlmtune.report.density import density

DICE = np.random.default_rng(0)


def test_it_is_a_sum_of_bells():
    values = np.array([-1.0, -0.2, 0.1, 0.4, 2.0])
    spread = math.sqrt(sum((x - values.mean()) ** 2 for x in values) / 4)
    width = 0.9 * min(spread, (0.4 + 0.2) / 1.34) * 5**-0.2
    grid = np.array([-2.0, 0.0, 0.7])
    wanted = [
        sum(math.exp(-((x - v) ** 2) / (2 * width**2)) for v in values)
        / (5 * width * math.sqrt(2 * math.pi))
        for x in grid
    ]
    assert density(values, grid) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("values", "left", "right"),
    [
        (DICE.normal(3, 2, 400), -10, 20),
        (np.abs(DICE.normal(0, 1, 400)), 0, 10),
        (DICE.beta(0.6, 0.6, 400), 0, 1),
        (np.array([0.0, 0.0, 0.0, 1.0, 1.0]), 0, 1),
        (np.array([0.5] * 20 + [0.6]), 0, 1),
        (DICE.normal(0, 1, 25_000), -8, 8),
    ],
)
def test_all_weight_is_within_bounds(values, left, right):
    grid = np.linspace(left, right, 801)
    assert np.trapezoid(density(values, grid), grid) == pytest.approx(1, abs=0.01)
    outside = np.array([left - 0.01, right + 0.01])
    if values.min() >= 0:
        assert density(values, outside)[0] == 0
    if values.min() >= 0 and values.max() <= 1:
        assert density(values, outside)[1] == 0
