"""The content of one benchmark's section of the page, as values for `page.html`.

In: rows and results of a benchmark. Out: dictionaries with text, charts and SVG. Never: HTML.
"""

from collections.abc import Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from vlmtune.report import table
from vlmtune.report.charts import Label, chart
from vlmtune.report.four_scores import matrix
from vlmtune.report.gallery import MATRIX, Gallery
from vlmtune.report.heat import heat_views
from vlmtune.report.plots import distribution_plot
from vlmtune.report.run_report import RunReport
from vlmtune.report.strips import strip_plot
from vlmtune.report.table import Row, Section, baseline, colours
from vlmtune.results.result import Result

SMALLEST = 3  # members of a family that is drawn
GROUPS = {
    "compositional": "Compositional",
    "retained": "Retained abilities",
    "sensitivity": "Sensitivity",
}
APART = 8  # ratio of widths from which on distributions get their own axes
OPEN = 16  # largest first family whose bars are shown at once


class Family(NamedTuple):
    """Metrics that measure the same on several groups: `accuracy/swap` and `accuracy/replace`.

    `name` is the part before the last "/", `members` the group of each metric, and its row.
    """

    name: str
    members: tuple[tuple[str, Row], ...]


def families(rows: Sequence[Row]) -> tuple[tuple[Family, ...], tuple[Row, ...]]:
    """The families with at least `SMALLEST` members, and the other rows.

    Counts and ranks have no common scale, so they form no family. A primary metric is always among
    the other rows.

    Example:
        >>> from vlmtune.results.result import MetricValue
        >>> names = ["ap", "ap/n=1", "ap/n=2", "ap/n=4"]
        >>> (family,), others = families(
        ...     [Row("b", "1", "strict", name, False, (MetricValue(0.5, 9),)) for name in names]
        ... )
        >>> family.name, [group for group, _ in family.members], [row.metric for row in others]
        ('ap', ['n=1', 'n=2', 'n=4'], ['ap'])
    """
    candidates: dict[str, list[tuple[str, Row]]] = {}
    for row in rows:
        # The last part is the group: acc/swap/4 is group 4 of the family acc/swap.
        name, slash, group = row.metric.rpartition("/")
        has_scale = row.first.unit in ("fraction", "cosine")
        if slash and has_scale:
            candidates.setdefault(name, []).append((group, row))
    out: list[Family] = []
    members_of_families: set[str] = set()
    for name, members in candidates.items():
        # One group has two rows if runs differ in its number of items.
        groups = {group for group, _ in members}
        if len(groups) >= SMALLEST:
            out.append(Family(name, tuple(members)))
            members_of_families.update(row.metric for _, row in members)
    others = [row for row in rows if row.primary or row.metric not in members_of_families]
    return tuple(out), tuple(others)


class Views:
    """Builds the sections of the page, one for each benchmark of `runs`."""

    def __init__(self, runs: Sequence[RunReport]) -> None:
        self.runs = runs
        self.colours = colours(runs)
        self.baseline = baseline(runs)
        self.names = [run.name for run in runs]
        self._first: dict[str, Result] = {}
        for run in runs:
            for result in run.results:
                self._first.setdefault(result.benchmark, result)
        self.citations = {name: result.citation for name, result in self._first.items()}
        self._gallery = Gallery(runs)
        self._plots = count(1)

    def section(self, section: Section) -> dict[str, Any]:
        """A benchmark under one convention: its table, its plots and its gallery."""
        head = section.head
        results = self._results(head)
        groups, others = families(section.rows)
        profile = self._profile(groups)
        family_views = []
        for group in groups:
            view = self._family(group)
            # Only the bars of the first family are shown at once, if they are few.
            view["open"] = not family_views and not profile and view["size"] <= OPEN
            family_views.append(view)
        return {
            "benchmark": head.benchmark,
            **self._named(head),
            "version": head.version,
            "convention": head.convention,
            "kind": section.head.kind,
            "citation": self.citations[head.benchmark],
            "rows": [self.row(row) for row in others],
            "families": family_views,
            "profile": profile,
            "series": self._series(results),
            "matrices": self._matrices(results),
            "gallery": self._gallery.of(*head.definition),
            "readings": self._readings(results),
        }

    def row(self, row: Row) -> dict[str, Any]:
        """One line of a table."""
        cells = [self._cell(row, i) for i in range(len(self.runs))]
        return {
            "title": row.title,
            **self._named(row),
            "group": self._group(row),
            "metric": row.metric,
            "arrow": row.arrow,
            "primary": row.primary,
            "facts": table.facts(row),
            "cells": cells,
        }

    def label(self, row: Row) -> Label:
        """What stands beside a primary metric in the chart of all of them."""
        named = self._named(row)
        n = table.size(row.first)
        return Label(
            text=named["name"],
            note=f"{row.directed} · n = {n}",
            about=named["about"],
            group=self._group(row),
        )

    def _named(self, row: Row) -> dict[str, str]:
        """The name of a benchmark for people, and what to know of it."""
        result = self._first[row.benchmark]
        title = result.title or row.benchmark
        about = f"{row.title}. {result.about}"
        return {"name": table.titled(title, row.convention), "about": about.strip()}

    def _group(self, row: Row) -> str:
        result = self._first[row.benchmark]
        title = GROUPS[result.kind]
        return f"{title}: {result.asks}" if result.asks else title

    def key(self) -> str:
        """A new prefix for the ids of a plot."""
        return f"plot{next(self._plots)}"

    def _results(self, row: Row) -> dict[int, Result]:
        """The results for the benchmark of a row by position of the run; of text-only runs none."""
        results = {}
        for i, run in enumerate(self.runs):
            result = run.result(*row.definition)
            if result is not None and not run.text_only:
                results[i] = result
        return results

    def _cell(self, row: Row, i: int) -> dict[str, Any] | None:
        """One number as text, with its distance from the baseline."""
        metric = row.cells[i]
        if metric is None:
            return None
        cell = {
            "text": table.number(metric.value, metric.unit),
            "interval": table.interval(metric),
            "best": i in row.best,
            "gain": "",
            "direction": "",
        }
        if self.baseline in (None, i) or i in row.text_only or metric.unit == "count":
            return cell
        base = row.cells[self.baseline]
        if base is None:
            return cell
        # The sign of the difference does not say whether it is better: a rank should fall.
        gain = metric.value - base.value
        cell["gain"] = table.change(gain, metric.unit)
        # More of a sensitivity is neither better nor worse.
        if row.kind != "sensitivity":
            cell["direction"] = table.direction(gain, metric.higher_is_better)
        return cell

    def _family(self, family: Family) -> dict[str, Any]:
        rows = []
        labels = []
        lines = []
        for group, row in family.members:
            n = table.size(row.first)
            rows.append(row)
            labels.append(Label(group, f"n = {n}"))
            lines.append({**self.row(row), "metric": group})
        return {
            "name": family.name,
            "arrow": rows[0].arrow,
            "size": len(rows),
            "rows": lines,
            "chart": chart(rows, labels, self.names, self.colours),
        }

    def _profile(self, groups: Sequence[Family]) -> list[dict[str, Any]]:
        """A plot of dimensions and one of the parts of each, for groups "dimension/part"."""
        for family in groups:
            dimensions = [f"{family.name}/{group}" for group, _ in family.members]
            parts = [part for part in groups if part.name in dimensions]
            unit = family.members[0][1].first.unit
            if parts and unit == "fraction":
                plots = [self._strips(family.name, family)]
                for part in parts:
                    dimension = part.name.removeprefix(f"{family.name}/")
                    plots.append(self._strips(dimension, part))
                return plots
        return []

    def _strips(self, name: str, family: Family) -> dict[str, Any]:
        labels, rows = zip(*family.members, strict=True)
        svg = strip_plot(labels, rows, self.colours, self.key())
        return {"name": name, "arrow": rows[0].arrow, "svg": svg}

    def _series(self, results: dict[int, Result]) -> list[dict[str, Any]]:
        """A plot for each series; several if the scales of runs are far apart."""
        series = {i: result.series for i, result in results.items()}
        names = dict.fromkeys(chain.from_iterable(series.values()))
        names.pop(MATRIX, None)  # the page shows this series as a square
        out = []
        for name in names:
            values = []
            for i in range(len(self.runs)):
                of_run = series.get(i, {})
                values.append(of_run.get(name))
            for part in _shared_axes(values):
                out.append(self._distribution(name, part))
        return out

    def _distribution(self, name: str, values: Sequence[Sequence[float] | None]) -> dict[str, Any]:
        legend = []
        for i, numbers in enumerate(values):
            if numbers:
                median = f"{np.median(numbers):.3g}"
                legend.append({**self._legend(i), "median": median, "n": len(numbers)})
        svg = distribution_plot(values, self.colours, self.key())
        return {"name": name, "svg": svg, "runs": legend}

    def _readings(self, results: dict[int, Result]) -> list[dict[str, Any]]:
        """What words read, of each run that shows it."""
        out = []
        for i, result in results.items():
            views = heat_views(result.readings)
            if views:
                out.append({**self._legend(i), "readings": views})
        return out

    def _matrices(self, results: dict[int, Result]) -> list[dict[str, Any]]:
        """The mean scores of two images by two captions, of each run that has them."""
        out = []
        for i, result in results.items():
            scores = result.series.get(MATRIX, ())
            # The mean over seeds is empty where the seeds differ in length.
            if len(scores) == 4:
                out.append({**self._legend(i), "rows": matrix(scores)})
        return out

    def _legend(self, i: int) -> dict[str, Any]:
        return {"name": self.names[i], "colour": self.colours[i]}


def _shared_axes(values: Sequence[Sequence[float] | None]) -> list[list[Sequence[float] | None]]:
    """Groups the runs by axis: on one axis, none is much wider than another."""
    widths = {}
    for i, numbers in enumerate(values):
        if numbers:
            widths[i] = float(np.ptp(numbers))
    # From the narrowest on, so that the first run of a group is its narrowest.
    narrowest_first = sorted(widths, key=widths.__getitem__)
    groups: list[list[int]] = []
    widest_allowed = -1.0  # on the last axis
    for i in narrowest_first:
        if widths[i] <= widest_allowed:
            groups[-1].append(i)
        else:
            groups.append([i])
            widest_allowed = APART * widths[i]
    groups.sort(key=min)
    out = []
    for group in groups:
        axis: list[Sequence[float] | None] = [None] * len(values)
        for i in group:
            axis[i] = values[i]
        out.append(axis)
    return out
