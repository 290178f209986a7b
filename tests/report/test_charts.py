import pytest

from vlmtune.report.charts import chart, charts
from vlmtune.report.table import Row
from vlmtune.results.metric_value import MetricValue


def row(*cells, **more):
    return Row("b", "1", "strict", more.get("metric", "m"), True, cells)


def test_positions_are_percentages_of_the_axis():
    metric = MetricValue(0.4, 10, 0.25, 0.3, 0.55)
    result = chart([row(metric, None)], [("b", "n = 10")], ["one", "two"], [1, 2])
    (line,) = result.lines
    lane, absent = line.lanes
    assert absent is None
    assert (line.label, line.note, line.chance) == ("b", "n = 10", 25.0)
    assert (lane.start, lane.low, lane.at, lane.high, lane.colour) == (0.0, 30.0, 40.0, 55.0, 1)
    assert lane.text == "one: 40.0 % [30.0–55.0], chance 25.0 %"
    assert result.ticks[0] == (0.0, "0 %")
    assert result.ticks[-1] == (100.0, "100 %")


def test_cosine_bars_begin_in_the_middle_and_intervals_stay_on_the_axis():
    metric = MetricValue(-0.5, 10, 0.0, -1.2, 0.0, unit="cosine")
    result = chart([row(metric)], [("", "")], ["one"], [0])
    lane = result.lines[0].lanes[0]
    assert (lane.low, lane.at, lane.start) == (0.0, 25.0, 50.0)
    assert [text for _, text in result.ticks] == ["-1", "-0.5", "0", "0.5", "1"]


def test_numbers_without_interval_or_chance():
    result = chart([row(MetricValue(8.0, 3, unit="rank"))], [("", "")], ["one"], [0])
    lane = result.lines[0].lanes[0]
    assert result.lines[0].chance is None
    assert lane.low == lane.at == lane.high == pytest.approx(100 / 1.05, abs=0.01)
    zero = MetricValue(0.0, 5, unit="rank")
    assert chart([row(zero)], [("", "")], ["one"], [0]).lines[0].lanes[0].at == 0.0


def test_each_unit_has_its_own_axis():
    rows = [
        row(MetricValue(3.0, 5, unit="rank"), metric="rank"),
        row(MetricValue(0.5, 5), metric="accuracy"),
        row(MetricValue(2.0, 5, unit="count"), metric="count"),
        row(MetricValue(0.25, 5), metric="other"),
    ]
    result = charts(rows, ["one"], [0])
    notes = [[line.note.split()[0] for line in one.lines] for one in result]
    assert notes == [["accuracy", "other"], ["rank"]]
    assert charts(rows[2:3], ["one"], [0]) == []
