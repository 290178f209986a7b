import re

import pytest

from vlmtune.metrics.value import MetricValue
from vlmtune.report.plots import density_plot, line_plot
from vlmtune.report.table import Row


def row(*values, unit="fraction", chance=0.25):
    cells = tuple(
        None if x is None else MetricValue(x, 9, chance, x - 0.1, x + 0.1, unit=unit)
        for x in values
    )
    return Row("b", "1", "strict", "map/1", False, cells)


def strokes(svg, colour):
    """Corners of each line of a colour."""
    pattern = rf'<path d="([^"]+)"[^>]*stroke: var\(--{colour}\)'
    return [len(re.findall(r"[ML]", path)) for path in re.findall(pattern, svg)]


def test_lines_over_numbers():
    rows = [row(0.9, 0.3), row(0.7, None), row(0.5, 0.2)]
    svg = line_plot((1.0, 3.0, 2.0), rows, (0, 1), "attributes", "a")
    assert sorted(strokes(svg, "series-0")) == [2, 2, 2, 3]  # three intervals and the line
    assert sorted(strokes(svg, "series-1")) == [2, 2, 2]  # two intervals and the line
    assert "attributes" in svg
    assert "75 %" in svg
    assert all(f">{n}<" in svg for n in "123")
    assert not re.search(r"#0[1-5]0[0-9]0[0-9]", svg)


def test_cosines_and_undefined_chance():
    rows = [row(-0.9, unit="cosine", chance=None), row(0.5, unit="cosine", chance=None)]
    svg = line_plot((1.0, 2.0), rows, (2,), "", "a")
    assert "%" not in re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)


def test_a_curve_for_each_run_that_has_the_series():
    values = [[float(i % 7) for i in range(50)], None, [0.5] * 3]
    svg = density_plot(values, (0, 1, 2), "a")
    assert max(strokes(svg, "series-0")) > 20
    assert strokes(svg, "series-1") == []
    assert len(re.findall(r"var\(--series-2\)", svg)) >= 1


@pytest.mark.parametrize("values", [[0.0], [1.0] * 40, [1e-9, 2e-9] * 10, [-1e6, 1e6] * 10])
def test_odd_distributions_can_be_drawn(values):
    assert density_plot([values], (0,), "a").startswith("<svg")
