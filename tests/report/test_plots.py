import math
import re

import numpy as np
import pytest

from vlmtune.report.plots import density, density_plot


def strokes(svg, colour):
    """Corners of each line of a colour."""
    pattern = rf'<path d="([^"]+)"[^>]*stroke: var\(--{colour}\)'
    return [len(re.findall(r"[ML]", path)) for path in re.findall(pattern, svg)]


def test_a_curve_for_each_run_that_has_the_series():
    values = [[float(i % 7) for i in range(50)], None, [0.5] * 3]
    svg = density_plot(values, (0, 1, 2), "a")
    assert max(strokes(svg, "series-0")) > 20
    assert strokes(svg, "series-1") == []
    assert len(re.findall(r"var\(--series-2\)", svg)) >= 1


@pytest.mark.parametrize("values", [[0.0], [1.0] * 40, [1e-9, 2e-9] * 10, [-1e6, 1e6] * 10])
def test_degenerate_distributions_can_be_drawn(values):
    assert density_plot([values], (0,), "a").startswith("<svg")


RNG = np.random.default_rng(0)


def test_the_density_is_a_sum_of_kernels():
    values = np.array([-1.0, -0.2, 0.1, 0.4, 2.0])
    spread = math.sqrt(sum((x - values.mean()) ** 2 for x in values) / 4)
    width = 0.9 * min(spread, (0.4 + 0.2) / 1.34) * 5**-0.2
    grid = np.array([-2.0, 0.0, 0.7])
    expected = [
        sum(math.exp(-((x - v) ** 2) / (2 * width**2)) for v in values)
        / (5 * width * math.sqrt(2 * math.pi))
        for x in grid
    ]
    assert density(values, grid) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "left", "right"),
    [
        (RNG.normal(3, 2, 400), -10, 20),
        (np.abs(RNG.normal(0, 1, 400)), 0, 10),
        (RNG.beta(0.6, 0.6, 400), 0, 1),
        (np.array([0.0, 0.0, 0.0, 1.0, 1.0]), 0, 1),
        (np.array([0.5] * 20 + [0.6]), 0, 1),
        (RNG.normal(0, 1, 25_000), -8, 8),
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
