import re

import pytest

from vlmtune.report.plots import distribution_plot


def strokes(svg, colour):
    """Corners of each line of a colour."""
    pattern = rf'<path d="([^"]+)"[^>]*stroke: var\(--{colour}\)'
    return [len(re.findall(r"[ML]", path)) for path in re.findall(pattern, svg)]


def test_a_curve_for_each_run_that_has_the_series():
    values = [[float(i % 7) for i in range(50)], None, [0.5] * 3]
    svg = distribution_plot(values, (0, 1, 2), "a")
    assert max(strokes(svg, "series-0")) > 20
    assert strokes(svg, "series-1") == []
    assert len(re.findall(r"var\(--series-2\)", svg)) >= 1


@pytest.mark.parametrize("values", [[0.0], [1.0] * 40, [1e-9, 2e-9] * 10, [-1e6, 1e6] * 10])
def test_degenerate_distributions_can_be_drawn(values):
    assert distribution_plot([values], (0,), "a").startswith("<svg")
