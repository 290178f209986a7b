"""Charts of dots and bars that the page draws with plain boxes, so that they fit every width.

In: rows of metrics. Out: positions in percent of the axis. Never: HTML.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from vlmtune.report.table import Row, bracketed, chance
from vlmtune.results.metric_value import MetricValue

TICKS = 4  # parts of an axis


class Lane(NamedTuple):
    """One number of one run: its value `at`, its interval, and the `start` of a bar at zero."""

    colour: int
    at: float
    low: float
    high: float
    start: float
    text: str
    text_only: bool


class Label(NamedTuple):
    """What stands beside a metric: its name and a note, what it measures, the group it begins."""

    text: str
    note: str
    about: str = ""
    group: str = ""


class Line(NamedTuple):
    """One metric: a label, and a lane for each run, None for runs without a number."""

    label: Label
    chance: float | None
    lanes: tuple[Lane | None, ...]


class Chart(NamedTuple):
    """Lines over one axis, with the position and text of each tick."""

    ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]


def charts(
    rows: Sequence[Row], labels: Sequence[Label], names: Sequence[str], colours: Sequence[int]
) -> list[Chart]:
    """One chart for each unit: fractions from 0 to 1, cosines from -1 to 1, ranks from 0.

    `names` and `colours` belong to the runs. Counts have no chart.
    """
    out = []
    for unit in ("fraction", "cosine", "rank"):
        labelled = zip(rows, labels, strict=True)
        of_unit = [(row, label) for row, label in labelled if row.first.unit == unit]
        if of_unit:
            rows_of_unit, labels_of_unit = zip(*of_unit, strict=True)
            out.append(chart(rows_of_unit, labels_of_unit, names, colours))
    return out


def chart(
    rows: Sequence[Row], labels: Sequence[Label], names: Sequence[str], colours: Sequence[int]
) -> Chart:
    """A chart of metrics of one unit, each with a label."""
    axis = _Axis.of(rows)
    lines = []
    group = ""
    for row, label in zip(rows, labels, strict=True):
        lanes: list[Lane | None] = []
        for i, cell in enumerate(row.cells):
            if cell is None:
                lanes.append(None)  # its place stays empty, so that colours keep their order
                continue
            text_only = i in row.text_only
            lanes.append(_lane(cell, axis, names[i], colours[i], text_only))
        level = row.first.chance
        at = None if level is None else axis.position(level)
        # The first line of a group has its heading.
        heads = label._replace(group="") if label.group == group else label
        group = label.group
        lines.append(Line(heads, at, tuple(lanes)))
    return Chart(axis.ticks(), tuple(lines))


@dataclass(frozen=True)
class _Axis:
    left: float
    right: float
    unit: str

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Axis":
        unit = rows[0].first.unit
        # The whole range, so that charts of several reports compare.
        if unit == "fraction":
            return cls(0.0, 1.0, unit)
        if unit == "cosine":
            return cls(-1.0, 1.0, unit)
        # Ranks have no upper end: the axis ends a little beyond all that is shown.
        top = 0.0
        for cell in chain.from_iterable(row.cells for row in rows):
            if cell is not None:
                top = max(top, cell.value, cell.high or 0.0, cell.chance or 0.0)
        return cls(0.0, 1.05 * top or 1.0, unit)

    def position(self, value: float) -> float:
        fraction = (value - self.left) / (self.right - self.left)
        # An interval may reach beyond the axis.
        on_axis = min(1.0, max(0.0, fraction))
        return round(100 * on_axis, 2)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        # A tick at both ends, so one more than there are steps.
        step = (self.right - self.left) / TICKS
        out = []
        for i in range(TICKS + 1):
            value = self.left + i * step
            text = f"{100 * value:.0f} %" if self.unit == "fraction" else f"{value:.3g}"
            out.append((self.position(value), text))
        return tuple(out)


def _lane(metric: MetricValue, axis: _Axis, name: str, colour: int, text_only: bool) -> Lane:
    # Without an interval its bar has no length.
    low = metric.value if metric.low is None else metric.low
    high = metric.value if metric.high is None else metric.high
    note = "; a tie is wrong" if text_only else ""
    return Lane(
        colour=colour,
        at=axis.position(metric.value),
        low=axis.position(low),
        high=axis.position(high),
        start=axis.position(0.0),
        text=f"{name}: {bracketed(metric)}, chance {chance(metric)}{note}",
        text_only=text_only,
    )
