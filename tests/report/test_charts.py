from dataclasses import replace

import pytest

from vlmtune.report.charts import Label, chart, charts
from vlmtune.report.table import Row
from vlmtune.results.metric_value import MetricValue


def row(*cells, **more):
    return Row("b", "1", "strict", more.get("metric", "m"), True, cells)


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
    metric = MetricValue(-0.5, 10, 0.0, -1.2, 0.0, unit="cosine")
    result = chart([row(metric)], [Label("", "")], ["one"], [0])
    lane = result.lines[0].lanes[0]
    assert (lane.low, lane.at, lane.start) == (0.0, 25.0, 50.0)
    assert [text for _, text in result.ticks] == ["-1", "-0.5", "0", "0.5", "1"]
    result = chart([row(MetricValue(8.0, 3, unit="rank"))], [Label("", "")], ["one"], [0])
    lane = result.lines[0].lanes[0]
    assert result.lines[0].chance is None
    assert lane.low == lane.at == lane.high == pytest.approx(100 / 1.05, abs=0.01)
    zero = MetricValue(0.0, 5, unit="rank")
    assert chart([row(zero)], [Label("", "")], ["one"], [0]).lines[0].lanes[0].at == 0.0


def test_each_unit_has_its_own_axis():
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


def test_text_only_marks_are_told_apart():
    metric = MetricValue(0.0, 4, 0.25)
    drawn = replace(row(metric, metric), text_only=frozenset([1]))
    lanes = chart([drawn], [Label("", "")], ["model", "n-gram"], [0, 1]).lines[0].lanes
    assert [lane.text_only for lane in lanes] == [False, True]
    assert lanes[1].text.endswith("a tie is wrong")
