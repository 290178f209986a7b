import re

import pytest

from vlmtune.report.strips import MARKERS, strip_plot
from vlmtune.report.table import COLOURS, Row
from vlmtune.results.metric_value import MetricValue


def metric(value, **more):
    return MetricValue(value, 9, 0.5, value - 0.1, value + 0.1, **more)


def row(name, *cells):
    return Row("b", "1", "strict", f"accuracy/{name}", False, cells)


def intervals(svg, colour):
    """The ends of the intervals of a run, in points."""
    pattern = rf'<path d="M ([\d.]+) [\d.]+ \nL ([\d.]+) [\d.]+ \n"[^>]*stroke: var\(--{colour}\)'
    return [tuple(map(float, found)) for found in re.findall(pattern, svg)]


def test_each_run_with_a_number_has_an_interval_in_each_strip():
    rows = [row("a", metric(0.2), metric(0.6)), row("b", metric(0.3), None)]
    svg = strip_plot(["a", "a long label of words that are many"], rows, (0, 1), "k")
    (low, high), (lower, _) = intervals(svg, "series-0")
    ((other, _),) = intervals(svg, "series-1")
    # Of 100 % a tenth lies between the first run's two values, and four between both runs.
    tenth = (high - low) / 2
    assert lower - low == pytest.approx(tenth, abs=0.01)
    assert other - low == pytest.approx(4 * tenth, abs=0.01)
    assert len(MARKERS) == COLOURS


def test_numbers_without_interval_or_chance_can_be_drawn():
    svg = strip_plot(["a"], [row("a", MetricValue(0.5, 9))], (0,), "k")
    assert svg.startswith("<svg")
    assert intervals(svg, "series-0") == []
