"""What the page says of one benchmark, as plain values for its template."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vlmtune.metrics.value import MetricValue
from vlmtune.report import table
from vlmtune.report.charts import chart
from vlmtune.report.families import Family, families
from vlmtune.report.gallery import Gallery
from vlmtune.report.plots import density_plot, line_plot
from vlmtune.report.result import Result
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, Section, baseline, series

MATRIX = "mean_scores"  # the series that is a mean 2 x 2 matrix
NOTES = {
    "equivariance_text": "How far a step from one caption to the other is from changing the "
    "score of both images alike: 0 is equivariant. In units of the run's scores.",
    "equivariance_image": "How far a step from one image to the other is from changing the score "
    "of both captions alike: 0 is equivariant. In units of the run's scores.",
}
APART = 8  # times as wide: such distributions do not share an axis
OPEN = 16  # members of the first family, up to which its bars are shown at once


class Views:
    """Makes the views of the benchmarks of `runs`.

    Args:
        runs: The runs, in the order of the columns.
    """

    def __init__(self, runs: Sequence[RunReport]) -> None:
        self.runs, self.colours = runs, series(runs)
        self.names = [run.name for run in runs]
        self._gallery = Gallery(runs)
        self._citations = {r.benchmark: r.citation for run in runs for r in run.results}
        self._keys = 0

    def section(self, section: Section) -> dict[str, Any]:
        """A benchmark under one convention: its table, its drawings and its gallery."""
        head = section.head
        results = self._results(head)
        found, others = families(section.rows)
        return {
            "benchmark": head.benchmark,
            "version": head.version,
            "convention": head.convention,
            "kind": section.kind,
            "citation": self._citations[head.benchmark],
            "rows": [self.row(row) for row in others],
            "families": [self._family(family, i) for i, family in enumerate(found)],
            "series": self._series(results),
            "matrices": self._matrices(results),
            "gallery": self._gallery.of(head.benchmark, head.version, head.convention),
        }

    def row(self, row: Row) -> dict[str, Any]:
        """One line of a table."""
        return {
            "title": row.title,
            "metric": row.metric,
            "arrow": row.arrow,
            "primary": row.primary,
            "n": row.first.n,
            "chance": table.chance(row.first),
            "cells": [self._cell(row, i) for i in range(len(self.runs))],
        }

    def key(self) -> str:
        """A prefix for the ids of a plot, another one at each call."""
        self._keys += 1
        return f"plot{self._keys}"

    def _results(self, row: Row) -> list[Result | None]:
        """Of each run its result under the row's version and convention; None where it is blind."""
        wanted = (row.benchmark, row.version, row.convention)

        def fits(result: Result) -> bool:
            return (result.benchmark, result.version, result.convention) == wanted

        return [
            None if run.text_only else next(filter(fits, run.results), None) for run in self.runs
        ]

    def _cell(self, row: Row, i: int) -> dict[str, Any] | None:
        """One number as it is shown, with its distance from the baseline."""
        metric, first = row.cells[i], baseline(self.runs)
        if metric is None:
            return None
        base = None if first in (None, i) or i in row.text_only else row.cells[first or 0]
        base = None if metric.unit == "count" else base
        return {
            "text": table.number(metric.value, metric.unit),
            "interval": table.interval(metric),
            "best": i in row.best,
            "gain": "" if base is None else table.change(metric.value - base.value, metric.unit),
            "direction": "" if base is None else direction(metric, base),
        }

    def _family(self, family: Family, place: int) -> dict[str, Any]:
        rows = [row for _, row in family.members]
        positions = family.positions
        drawn: dict[str, Any] = {"svg": None, "chart": None}
        if positions is not None:
            svg = line_plot(positions, rows, self.colours, family.axis, self.key())
            drawn["svg"] = safe(svg)
        else:
            labels = [(group, f"n = {row.first.n}") for group, row in family.members]
            drawn["chart"] = chart(rows, labels, self.names, self.colours)
        return {
            "name": family.name,
            "arrow": rows[0].arrow,
            "size": len(rows),
            "open": place == 0 and len(rows) <= OPEN,
            "rows": [{**self.row(row), "metric": group} for group, row in family.members],
            **drawn,
        }

    def _series(self, results: Sequence[Result | None]) -> list[dict[str, Any]]:
        """A plot for each series; several where the scales of runs are far apart."""
        names = dict.fromkeys(
            name for result in results if result is not None for name in result.series
        )
        return [
            self._distribution(name, part, NOTES.get(name, "") if place == 0 else "")
            for name in names
            if name != MATRIX
            for place, part in enumerate(
                _parts([None if r is None else r.series.get(name) for r in results])
            )
        ]

    def _distribution(
        self, name: str, values: Sequence[Sequence[float] | None], note: str
    ) -> dict[str, Any]:
        shown = [i for i, own in enumerate(values) if own]
        svg = density_plot(values, self.colours, self.key())
        return {
            "name": name,
            "note": note,
            "svg": safe(svg),
            "runs": [
                {
                    "name": self.names[i],
                    "series": self.colours[i],
                    "median": f"{np.median(values[i] or [0]):.3g}",
                    "n": len(values[i] or ()),
                }
                for i in shown
            ],
        }

    def _matrices(self, results: Sequence[Result | None]) -> list[dict[str, Any]]:
        return [
            {"name": name, "series": colour, "rows": matrix(result.series[MATRIX])}
            for name, colour, result in zip(self.names, self.colours, results, strict=True)
            if result is not None and len(result.series.get(MATRIX, ())) == 4
        ]


def matrix(scores: Sequence[float]) -> list[list[dict[str, Any]]]:
    """A 2 x 2 matrix by rows (images) as shaded cells; a cross where a wrong pair is not below.

    Example:
        >>> cells = matrix((2.0, 1.0, 0.5, 0.75))
        >>> [[cell["shade"] for cell in row] for row in cells]
        [[100, 33], [0, 17]]
        >>> [[cell["wrong"] for cell in row] for row in cells]  # 1.0 is above 0.75
        [[False, True], [False, False]]
    """
    low, spread = min(scores), (max(scores) - min(scores)) or 1.0
    rivals = min(scores[0], scores[3])
    return [
        [
            {
                "text": f"{value:.3g}",
                "shade": round(100 * (value - low) / spread),
                "true": row == column,
                "wrong": row != column and value >= rivals,
            }
            for column, value in enumerate(scores[2 * row : 2 * row + 2])
        ]
        for row in (0, 1)
    ]


def safe(svg: str) -> Markup:
    """Marks a plot as fit to stand in the page as it is: matplotlib has escaped its texts."""
    return Markup(svg)  # noqa: S704


def direction(metric: MetricValue, base: MetricValue) -> str:
    """Whether a number is better or worse than another; "" where they are equal."""
    if metric.value == base.value:
        return ""
    return "better" if (metric.value > base.value) == metric.higher_is_better else "worse"


def _parts(
    values: Sequence[Sequence[float] | None],
) -> list[list[Sequence[float] | None]]:
    """The runs that share an axis: none is many times as wide as another."""
    groups: list[list[int]] = []
    widths = {i: float(np.ptp(own)) for i, own in enumerate(values) if own}
    for i in sorted(widths, key=widths.__getitem__):
        if groups and widths[i] <= APART * widths[groups[-1][0]]:
            groups[-1].append(i)
        else:
            groups.append([i])
    groups.sort(key=min)
    return [[own if i in group else None for i, own in enumerate(values)] for group in groups]
