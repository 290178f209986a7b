import re
from dataclasses import replace

import pytest

from vlmtune.report.charts import Label, chart, charts
from vlmtune.report.plots import distribution_plot
from vlmtune.report.strips import MARKERS, strip_plot
from vlmtune.report.table import COLOURS, Row
from vlmtune.results.metric_value import MetricValue


def row(*cells, **more):
    return Row("b", "1", "strict", more.get("metric", "m"), True, cells)


def drawn(metric):
    """The chart of one number."""
    return chart([row(metric)], [Label("", "")], ["one"], [0])


def test_positions_are_percentages_of_the_axis():
    metric = MetricValue(0.4, 10, 0.25, 0.3, 0.55)
    result = chart([row(metric, None)], [Label("b", "n = 10")], ["one", "two"], [1, 2])
    (line,) = result.lines
    lane, absent = line.lanes
    assert absent is None
    assert (line.label, line.chance) == (Label("b", "n = 10"), 25.0)
    assert (lane.start, lane.low, lane.at, lane.high, lane.colour) == (0.0, 30.0, 40.0, 55.0, 1)
    assert lane.text == "one: 40.0 % [30.0–55.0], chance 25.0 %"
    assert result.ticks[0] == (0.0, "0 %")
    assert result.ticks[-1] == (100.0, "100 %")


def test_cosines_begin_in_the_middle_and_what_lacks_an_interval_or_chance_is_drawn():
    result = drawn(MetricValue(-0.5, 10, 0.0, -1.2, 0.0, unit="cosine"))
    lane = result.lines[0].lanes[0]
    assert (lane.low, lane.at, lane.start) == (0.0, 25.0, 50.0)
    assert [text for _, text in result.ticks] == ["-1", "-0.5", "0", "0.5", "1"]
    (line,) = drawn(MetricValue(8.0, 3, unit="rank")).lines
    lane = line.lanes[0]
    assert line.chance is None
    assert lane.low == lane.at == lane.high == pytest.approx(100 / 1.05, abs=0.01)
    # What random scores reach is on the axis, too: 4 of 1.05 times 16.
    (line,) = drawn(MetricValue(4.0, 3, 16.0, unit="rank")).lines
    assert line.chance == pytest.approx(100 / 1.05, abs=0.01)
    assert line.lanes[0].at == pytest.approx(25 / 1.05, abs=0.01)
    assert drawn(MetricValue(0.0, 5, unit="rank")).lines[0].lanes[0].at == 0.0


def test_each_unit_has_its_own_axis_and_text_only_marks_are_told_apart():
    rows = [
        row(MetricValue(3.0, 5, unit="rank"), metric="rank"),
        row(MetricValue(0.5, 5), metric="accuracy"),
        row(MetricValue(2.0, 5, unit="count"), metric="count"),
        row(MetricValue(0.25, 5), metric="other"),
    ]
    labels = [Label(one.metric, "", group="all") for one in rows]
    result = charts(rows, labels, ["one"], [0])
    names = [[line.label.text for line in one.lines] for one in result]
    assert names == [["accuracy", "other"], ["rank"]]
    # Only the first line of a group has its heading.
    assert [line.label.group for line in result[0].lines] == ["all", ""]
    assert charts(rows[2:3], labels[2:3], ["one"], [0]) == []
    metric = MetricValue(0.0, 4, 0.25)
    marked = replace(row(metric, metric), text_only=frozenset([1]))
    lanes = chart([marked], [Label("", "")], ["model", "n-gram"], [0, 1]).lines[0].lanes
    assert [lane.text_only for lane in lanes] == [False, True]
    assert lanes[1].text.endswith("a tie is wrong")


def metric(value, **more):
    return MetricValue(value, 9, 0.5, value - 0.1, value + 0.1, **more)


def group(name, *cells):
    return Row("b", "1", "strict", f"accuracy/{name}", False, cells)


def intervals(svg, colour):
    """The ends of the intervals of a run, in points."""
    pattern = rf'<path d="M ([\d.]+) [\d.]+ \nL ([\d.]+) [\d.]+ \n"[^>]*stroke: var\(--{colour}\)'
    return [tuple(map(float, found)) for found in re.findall(pattern, svg)]


def test_each_run_with_a_number_has_an_interval_in_each_strip():
    rows = [group("a", metric(0.2), metric(0.6)), group("b", metric(0.3), None)]
    svg = strip_plot(["a", "a long label of words that are many"], rows, (0, 1), "k")
    (low, high), (lower, _) = intervals(svg, "series-0")
    ((other, _),) = intervals(svg, "series-1")
    # Of 100 % a tenth lies between the first run's two values, and four between both runs.
    tenth = (high - low) / 2
    assert lower - low == pytest.approx(tenth, abs=0.01)
    assert other - low == pytest.approx(4 * tenth, abs=0.01)
    assert len(MARKERS) == COLOURS
    svg = strip_plot(["a"], [group("a", MetricValue(0.5, 9))], (0,), "k")
    assert svg.startswith("<svg")
    assert intervals(svg, "series-0") == []


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
