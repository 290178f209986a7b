"""Dots and bars that the page draws with plain boxes, so that they fit every width.

Positions are percentages of the track they stand on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vlmtune.metrics.value import MetricValue
from vlmtune.report.table import Row, chance, interval, number

TICKS = 4


@dataclass(frozen=True)
class Lane:
    """One number of one run.

    Attributes:
        series: Number of the run's colour.
        at: Where the number stands.
        low: Where its interval begins; that of the number where there is none.
        high: Where it ends.
        start: Where a bar begins: at zero, or at the left end where zero is not on the axis.
        text: Run, number and interval.
        best: Whether it is the best of its row.
    """

    series: int
    at: float
    low: float
    high: float
    start: float
    text: str
    best: bool


@dataclass(frozen=True)
class Line:
    """One metric: a label, and a lane for each run.

    Attributes:
        label: What is measured.
        note: MetricValue, direction and number of items.
        chance: Where chance stands, or None.
        lanes: One for each run that has a number, None for the others.
    """

    label: str
    note: str
    chance: float | None
    lanes: tuple[Lane | None, ...]


@dataclass(frozen=True)
class Chart:
    """Lines over one axis.

    Attributes:
        ticks: Position and text of each tick.
        lines: The metrics.
    """

    ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]


def charts(rows: Sequence[Row], names: Sequence[str], series: Sequence[int]) -> list[Chart]:
    """One chart for each unit: fractions from 0 to 1, cosines from -1 to 1, ranks from 0 on.

    Args:
        rows: The metrics; counts are left out.
        names: Names of the runs.
        series: Number of the colour of each run.
    """
    found = []
    for unit in ("fraction", "cosine", "rank"):
        own = [row for row in rows if row.first.unit == unit]
        if own:
            labels = [(row.title, f"{row.metric} {row.arrow} · n = {row.first.n}") for row in own]
            found.append(chart(own, labels, names, series))
    return found


def chart(
    rows: Sequence[Row],
    labels: Sequence[tuple[str, str]],
    names: Sequence[str],
    series: Sequence[int],
) -> Chart:
    """A chart of metrics of one unit.

    Args:
        rows: At least one metric.
        labels: Label and note of each.
        names: Names of the runs.
        series: Number of the colour of each run.
    """
    axis = _Axis.of(rows)
    lines = [
        Line(
            label,
            note,
            None if row.first.chance is None else axis.place(row.first.chance),
            tuple(
                None if cell is None else _lane(cell, axis, names[i], series[i], i in row.best)
                for i, cell in enumerate(row.cells)
            ),
        )
        for row, (label, note) in zip(rows, labels, strict=True)
    ]
    return Chart(axis.ticks(), tuple(lines))


def changes(
    values: Sequence[tuple[float, str]],
) -> list[tuple[Literal["less", "more"], float]]:
    """Bars on both sides of zero: the side and the length, 50 for the largest of its unit.

    Args:
        values: Each difference with its unit.

    Example:
        >>> changes([(-0.02, "fraction"), (0.01, "fraction"), (3.0, "rank")])
        [('less', 50.0), ('more', 25.0), ('more', 50.0)]
    """
    largest: dict[str, float] = {}
    for value, unit in values:
        largest[unit] = max(largest.get(unit, 0.0), abs(value))
    return [
        ("less" if value < 0 else "more", 50 * abs(value) / (largest[unit] or 1))
        for value, unit in values
    ]


@dataclass(frozen=True)
class _Axis:
    left: float
    right: float
    unit: str

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Axis":
        unit = rows[0].first.unit
        if unit == "fraction":
            return cls(0.0, 1.0, unit)
        if unit == "cosine":
            return cls(-1.0, 1.0, unit)
        cells = [cell for row in rows for cell in row.cells if cell is not None]
        top = max(x for c in cells for x in (c.value, c.high, c.chance) if x is not None)
        return cls(0.0, 1.05 * top or 1.0, unit)

    def place(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        step = (self.right - self.left) / TICKS
        values = [self.left + i * step for i in range(TICKS + 1)]
        return tuple((self.place(value), self._tick(value)) for value in values)

    def _tick(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.unit == "fraction" else f"{value:.3g}"


def _lane(metric: MetricValue, axis: _Axis, name: str, series: int, best: bool) -> Lane:
    span = interval(metric)
    text = f"{name}: {number(metric.value, metric.unit)}" + (f" [{span}]" if span else "")
    return Lane(
        series=series,
        at=axis.place(metric.value),
        low=axis.place(metric.value if metric.low is None else metric.low),
        high=axis.place(metric.value if metric.high is None else metric.high),
        start=axis.place(0.0),
        text=f"{text}, chance {chance(metric)}",
        best=best,
    )
