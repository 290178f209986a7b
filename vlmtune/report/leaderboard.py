"""A leaderboard: models as rows, benchmarks as columns, gains beside losses, and each pair tested.

In: a report for each model, and what an image costs. Out: leaderboard.html, .md and .csv.
Never: a date or a time of the measurement, so that equal numbers give equal files.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import yaml

from vlmtune.report import table
from vlmtune.report.caveats import TEXT_ONLY, Caveat, caveats
from vlmtune.report.differences import LEVEL, TEST, Comparison, compare_with_first
from vlmtune.report.formats import no_formula
from vlmtune.report.html import render
from vlmtune.report.markdown import line
from vlmtune.report.plots import FAINT, INK, MUTED, RUN_COLOURS, STYLE, plot_axes, svg_of
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, check_runs, sections
from vlmtune.report.views import Views, safe
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.files import all_or_none, write_text

FEW_ITEMS = 100
"""Items below which a benchmark has a warning."""
PROMPTS = ("prompt", "templates")
"""Options of benchmarks that make captions of names."""
FIGURE = (4.4, 3.4)  # inches, of the plot of gains and losses
TWIN = ".reference"
"""What a benchmark's name ends with where it counts a second time, as the published script does."""
COSTS = ("trained weights", "bytes an image", "training")
CSV_COLUMNS = (
    *("model", "text_only", "trained_weights", "bytes_an_image", "training_seconds"),
    *("gained", "gained_low", "gained_high", "retained", "retained_low", "retained_high"),
)


@dataclass(frozen=True)
class Entry:
    """A model of a leaderboard: its numbers, and what an index stores of an image, if known."""

    report: RunReport
    bytes_an_image: int | None


def mean_change(of_run: Sequence[Comparison], kind: str) -> MetricValue | None:
    r"""The mean change of primary metrics that are fractions, on benchmarks of one kind.

    Above 0 is better. The 95 % interval is as if the B benchmarks shared no image: half of it is
    $\sqrt{\sum_b h_b^2} / B$, with half the interval $h_b$ of each. There is none where that of
    a benchmark is unknown. None without a benchmark.
    """
    changes = []
    halves = []
    for one in of_run:
        if one.result.kind != kind or one.change is None or one.metric.unit != "fraction":
            continue
        changes.append(one.change if one.metric.higher_is_better else -one.change)
        paired = one.paired
        if paired is not None and paired.low is not None and paired.high is not None:
            halves.append((paired.high - paired.low) / 2)
    if not changes:
        return None
    mean = sum(changes) / len(changes)
    half = math.hypot(*halves) / len(changes)
    known = len(halves) == len(changes)
    low, high = (mean - half, mean + half) if known else (None, None)
    return MetricValue(mean, len(changes), low=low, high=high)


def pareto_front(points: Mapping[int, tuple[float, float]]) -> list[int]:
    """The keys of the points (loss, gain) for which no other loses less and gains more.

    Of equal points all are in front.

    Example:
        >>> pareto_front({0: (0.0, 0.0), 1: (1.0, 9.0), 2: (2.0, 5.0), 3: (-1.0, -3.0)})
        [3, 0, 1]
    """
    front = []
    for key, (loss, gain) in points.items():
        others = [point for point in points.values() if point != (loss, gain)]
        if not any(other[0] <= loss and other[1] >= gain for other in others):
            front.append(key)
    return sorted(front, key=points.__getitem__)


def write_leaderboard(folder: Path, entries: Sequence[Entry]) -> Path:
    """Writes leaderboard.html, .md and .csv, all or none; returns the path of the page.

    The first model is the one that the others are compared with.
    """
    board = Board(entries)
    texts = {"html": board.html(), "md": board.markdown(), "csv": board.csv()}
    with all_or_none():
        for ending, text in texts.items():
            write_text(folder / f"leaderboard.{ending}", text)
    return folder / "leaderboard.html"


class Board:
    """The content of a leaderboard.

    Attributes:
        runs: The reports of the models, then that of text-only scores, if there is one.
        rows: The primary metrics of the benchmarks, under the strict convention, then "reference".
        gains: Of each run the mean change on compositional and on retained benchmarks; None
            without any, for the first model, and for text-only scores.
        points: Of each model what it lost on retained benchmarks and gained on compositional ones.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.runs = [entry.report for entry in entries]
        check_runs(self.runs)
        self.rows: dict[str, list[Row]] = {"strict": [], "reference": []}
        for row in chain.from_iterable(part.primary for part in sections(self.runs)):
            self.rows[row.convention].append(row)
        # Comparisons and warnings count by the strict convention; the other would repeat them.
        self.strict = list(map(_strict, self.runs))
        by_run: list[list[Comparison]] = [[] for _ in self.runs]
        for one in compare_with_first(self.strict):
            by_run[one.run].append(one)
        self.gains = []
        self.points: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}
        for i, of_run in enumerate(by_run):
            gained = mean_change(of_run, "compositional")
            retained = mean_change(of_run, "retained")
            self.gains.append((gained, retained))
            if gained is not None and retained is not None:
                self.points[i] = (-100 * retained.value, 100 * gained.value)
        self.front = pareto_front(self.points)

    def pairs(self) -> dict[tuple[int, int], tuple[Comparison, ...]]:
        """The second model of each pair against its first, on the same items."""
        seeing = [i for i, run in enumerate(self.runs) if not run.text_only]
        out = {}
        for i, j in combinations(seeing, 2):
            out[i, j] = compare_with_first([self.strict[i], self.strict[j]])
        return out

    def warnings(self) -> list[Caveat]:
        """What limits the numbers: the caveats of a report, few items, and prompts."""
        found = list(caveats(self.strict))
        for kind, means in zip(table.KINDS, zip(*self.gains, strict=True), strict=True):
            counts = [0 if mean is None else mean.n for mean in means]
            for run, n in zip(self.runs, counts, strict=True):
                if 0 < n < max(counts):
                    text = f"its mean is over {n} of {max(counts)} {kind} benchmarks"
                    found.append(Caveat(run.name, text))
        for row in self.rows["strict"]:
            n = row.first.n
            if n < FEW_ITEMS:
                found.append(Caveat(row.title, f"{n} items: one of them is {100 / n:.1f} points"))
            options = self._spec(row).get("init_args", {})
            for name in PROMPTS:
                if options.get(name):
                    text = f"its {name} is {options[name]!r}: with another the number is another"
                    found.append(Caveat(row.title, text))
        return found

    def _spec(self, row: Row) -> Mapping[str, Any]:
        """The class path and the options of a row's benchmark."""
        return self.runs[0].provenance.config.get("benchmarks", {}).get(row.benchmark, {})

    def published(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The papers' numbers for benchmarks of these kinds, in `published.yaml`.

        `column` is the position of the row with the same metric and number of items, or None: the
        paper's number is then one of other items.
        """
        kinds = []
        for row in rows:
            module, _, _ = str(self._spec(row).get("class_path", "")).rpartition(".")
            kinds.append(module.rpartition(".")[2])
        path = Path(__file__).with_name("published.yaml")
        out = []
        for number in yaml.safe_load(path.read_text(encoding="utf-8")):
            if number["benchmark"] not in kinds:
                continue
            column = None
            for i, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
                known = (kind, row.metric, row.first.n)
                if known == (number["benchmark"], number["metric"], number["n"]):
                    column = i
            out.append({**number, "column": column})
        return out

    def not_run(self) -> dict[tuple[str, str], list[str]]:
        """The benchmarks that could not run, why, and on which models."""
        names: dict[tuple[str, str], list[str]] = {}
        for run in self.runs:
            for benchmark, why in run.not_run:
                names.setdefault((benchmark, why), []).append(run.name)
        return names

    def costs(self, i: int) -> list[str]:
        """The cells of a model under `COSTS`."""
        if self.runs[i].text_only:
            return [""] * len(COSTS)
        size = self.entries[i].bytes_an_image
        origin = self.runs[i].provenance
        stored = "–" if size is None else f"{size:,}"
        time = table.duration(origin.seconds) if origin.seconds else "–"
        return [table.count(origin.trainable_parameters), stored, time]

    # -- the page -----------------------------------------------------------------------------

    def html(self) -> str:
        """The page."""
        views = Views(self.runs)
        warnings = self.warnings()
        parts = []
        for convention, rows in self.rows.items():
            shown = list(map(views.row, rows))
            by_model = []
            for i in range(len(self.runs)):
                by_model.append([row["cells"][i] for row in shown])
            part = {"convention": convention, "heads": shown, "cells": by_model}
            parts.append({**part, "published": self.published(rows)})
        plot = safe(self.plot(views.colours)) if len(self.points) > 1 else ""
        pairs = self.pairs()
        tested = [one for one in chain.from_iterable(pairs.values()) if one.verdict]
        return render(
            "leaderboard.html",
            models=[self._model(i, colour) for i, colour in enumerate(views.colours)],
            parts=[part for part in parts if part["heads"]],
            costs=COSTS,
            titles=table.TITLES,
            plot=plot,
            matrix=_matrix(pairs, len(self.runs)),
            pairs=pairs,
            note=f"{TEST} Tests: {len(tested)}, of which about {LEVEL * len(tested):.0f} would "
            "find a difference by chance.",
            warnings=warnings,
            flagged=[warning.benchmark for warning in warnings if warning.text_only],
            text_only=TEXT_ONLY,
            not_run=self.not_run(),
            sources=views.citations,
        )

    def _model(self, i: int, colour: int) -> dict[str, Any]:
        run = self.runs[i]
        origin = run.provenance
        return {
            "number": i + 1,
            "name": run.name,
            "colour": colour,
            "text_only": run.text_only,
            "changes": list(map(_change, self.gains[i])),
            "front": i in self.front,
            "costs": self.costs(i),
            "about": f"{origin.adapter} on {origin.backbone}",
        }

    def plot(self, run_colours: Sequence[int]) -> str:
        """Draws what models gained against what they lost, each with its number, and the front."""
        with mpl.rc_context(STYLE):
            figure, axes = plot_axes()
            figure.set_size_inches(*FIGURE)
            axes.set_position((0.16, 0.14, 0.82, 0.83))
            axes.grid(axis="both", linewidth=0.6)
            axes.axhline(0, color=FAINT, linewidth=1.4)
            axes.axvline(0, color=FAINT, linewidth=1.4)
            xs, ys = zip(*(self.points[i] for i in self.front), strict=True)
            axes.plot(xs, ys, color=MUTED, linewidth=1, linestyle="--")
            for i, (x, y) in self.points.items():
                colour = RUN_COLOURS[run_colours[i]]
                gained, retained = self.gains[i]
                if gained is not None and gained.low is not None and gained.high is not None:
                    ends = [100 * gained.low, 100 * gained.high]
                    axes.plot([x, x], ends, color=colour, alpha=0.4)
                if retained is not None and retained.low is not None and retained.high is not None:
                    ends = [-100 * retained.low, -100 * retained.high]
                    axes.plot(ends, [y, y], color=colour, alpha=0.4)
                axes.scatter([x], [y], color=colour, s=26, linewidth=0, zorder=3)
                offset = {"xytext": (4, 4), "textcoords": "offset points"}
                axes.annotate(str(i + 1), (x, y), color=INK, **offset)
            axes.set_xlabel("lost on retained abilities, points", loc="right", labelpad=2)
            axes.set_ylabel("gained, points", loc="top", labelpad=2)
            return svg_of(figure, "front")

    # -- tables for other programs ------------------------------------------------------------

    def markdown(self) -> str:
        """The tables of leaderboard.md: the models by the strict convention, then by the other."""
        lines = ["# vlmtune leaderboard"]
        for convention, rows in self.rows.items():
            if not rows:
                continue
            heads = ["model", "gained", "retained", *COSTS]
            heads += [f"{_title(row)} {row.directed}" for row in rows]
            lines += ["", f"## {convention} convention", "", line(heads)]
            lines.append(line(["---"] + ["---:"] * (len(heads) - 1)))
            for title, column in zip(
                table.TITLES, zip(*map(table.facts, rows), strict=True), strict=True
            ):
                lines.append(line([title, "", "", *[""] * len(COSTS), *column]))
            for i, run in enumerate(self.runs):
                cells = [run.name]
                for change in map(_change, self.gains[i]):
                    cells.append(f"{change['text']} {change['interval']}".strip())
                cells += self.costs(i)
                for row in rows:
                    metric = row.cells[i]
                    cells.append("–" if metric is None else table.bracketed(metric))
                lines.append(line(cells))
        lines += ["", "## Warnings", ""]
        lines += [f"- {one.benchmark}: {one.text}" for one in self.warnings()]
        return "\n".join([*lines, ""])

    def csv(self) -> str:
        """A line for each model: its costs, its mean changes, and each primary metric."""
        rows = [*self.rows["strict"], *self.rows["reference"]]
        heads = list(CSV_COLUMNS)
        for row in rows:
            name = f"{_title(row)} {row.metric}"
            heads += [name, f"{name} low", f"{name} high"]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(no_formula, heads))
        for i, entry in enumerate(self.entries):
            origin = entry.report.provenance
            cells: list[object] = [no_formula(entry.report.name)]
            cells.append(str(entry.report.text_only).lower())
            cells += [origin.trainable_parameters, entry.bytes_an_image, origin.seconds]
            for number in (*self.gains[i], *(row.cells[i] for row in rows)):
                known = number is not None
                cells += [number.value, number.low, number.high] if known else [None] * 3
            writer.writerow(cells)
        return file.getvalue()


def _change(mean: MetricValue | None) -> dict[str, str]:
    if mean is None:
        return {"text": "–", "interval": ""}
    limits = table.signed_interval(mean.low, mean.high, mean.unit)
    return {"text": table.change(mean.value, mean.unit), "interval": limits}


def _title(row: Row) -> str:
    return row.title.replace(TWIN, "")


def _strict(run: RunReport) -> RunReport:
    kept = [result for result in run.results if result.convention == "strict"]
    return replace(run, results=tuple(kept))


def _matrix(
    pairs: Mapping[tuple[int, int], Sequence[Comparison]], models: int
) -> list[list[dict[str, Any] | None]]:
    """Of each model against each other one: benchmarks on which it is better, and worse."""
    matrix: list[list[dict[str, Any] | None]] = [[None] * models for _ in range(models)]
    for (i, j), comparisons in pairs.items():
        verdicts = [one.verdict for one in comparisons]
        better = verdicts.count("better")
        worse = verdicts.count("worse")
        shade = round(100 * (better + worse) / max(1, len(verdicts)))
        cell = {"shade": shade, "key": f"pair-{i + 1}-{j + 1}"}
        matrix[j][i] = {**cell, "better": better, "worse": worse}
        matrix[i][j] = {**cell, "better": worse, "worse": better}
    return matrix
