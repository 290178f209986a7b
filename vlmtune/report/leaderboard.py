"""A leaderboard: models as rows, benchmarks as columns, gains beside losses, and each pair tested.

In: a report for each model, and what its search costs. Out: leaderboard.html, .md and .csv.
Never: a date, so that equal numbers give equal files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import yaml

from vlmtune.report import table
from vlmtune.report.caveats import TEXT_ONLY, Caveat, caveats
from vlmtune.report.differences import BY_CHANCE, Comparison, compare_with_first, note_on_tests
from vlmtune.report.formats import csv_text, no_formula
from vlmtune.report.html import render
from vlmtune.report.markdown_table import markdown_table
from vlmtune.report.pareto import Point, mean_change, pareto_front, pareto_plot
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, check_runs, sections
from vlmtune.report.views import Views
from vlmtune.results.metric_value import MetricValue
from vlmtune.storage.files import all_or_none, write_text

FEW_ITEMS = 100
"""Items below which a benchmark has a warning."""
PROMPTS = ("prompt", "templates")
"""Options of benchmarks that make captions of names."""
TWIN = ".reference"
"""What a benchmark's name ends with where it counts a second time, as the published script does."""
Pairs = dict[tuple[int, int], tuple[Comparison, ...]]  # of two models, by their positions
COSTS = ("trained weights", "bytes an image", "pairs a second", "training")
CSV_COLUMNS = (
    *("model", "text_only", "trained_weights"),
    *("bytes_an_image", "pairs_a_second", "training_seconds"),
    *("gained", "gained_low", "gained_high", "retained", "retained_low", "retained_high"),
)


@dataclass(frozen=True)
class Cost:
    """What the search of an index costs.

    Attributes:
        bytes_an_image: What an index stores of an image, without its name.
        pairs_a_second: How many stored images are scored with a caption in a second, on the machine
            that measured it; None where no caption was known to the model.
    """

    bytes_an_image: int
    pairs_a_second: float | None


@dataclass(frozen=True)
class MeasuredModel:
    """A model of a leaderboard: its numbers, and what its search costs, if it has an index."""

    report: RunReport
    cost: Cost | None


def write_leaderboard(folder: Path, entries: Sequence[MeasuredModel]) -> Path:
    """Writes leaderboard.html, .md and .csv, all or none; returns the path of the page.

    The first model is the one that the others are compared with. They follow by their gain.
    """
    board = Board(Board(entries).ranked())
    page = folder / "leaderboard.html"
    with all_or_none():
        write_text(page, board.html())
        write_text(page.with_suffix(".md"), board.markdown())
        write_text(page.with_suffix(".csv"), board.csv())
    return page


class Board:
    """The content of a leaderboard.

    Attributes:
        runs: The reports of the models, then those of text-only scores, if there are any.
        rows: The primary metrics of the benchmarks, under the strict convention, then "reference".
        gains: Of each run the mean change on compositional and on retained benchmarks; None
            without any, for the first model, and for text-only scores.
        points: Of each model what it lost on retained benchmarks and gained on compositional ones.
    """

    def __init__(self, entries: Sequence[MeasuredModel]) -> None:
        self.entries = entries
        self.runs = [entry.report for entry in entries]
        check_runs(self.runs)
        self.rows: dict[str, list[Row]] = {"strict": [], "reference": []}
        for section in sections(self.runs):
            for row in section.primary:
                self.rows[row.convention].append(row)
        # Comparisons and warnings count by the strict convention; the other would repeat them.
        self.strict = list(map(_strict, self.runs))
        comparisons = compare_with_first(self.strict)
        self.gains = []
        self.points: dict[int, Point] = {0: (0.0, 0.0)}
        for i in range(len(self.runs)):
            of_run = [one for one in comparisons if one.run == i]
            gained = mean_change(of_run, "compositional")
            retained = mean_change(of_run, "retained")
            self.gains.append((gained, retained))
            if gained is not None and retained is not None:
                self.points[i] = (-100 * retained.value, 100 * gained.value)
        self.front = pareto_front(self.points)

    def ranked(self) -> list[MeasuredModel]:
        """The first model, then the others by their gain, highest first, those without one last."""

        def gain(i: int) -> float:
            gained, _ = self.gains[i]
            return -math.inf if gained is None else gained.value

        first, *others = range(len(self.entries))
        others.sort(key=gain, reverse=True)
        return [self.entries[i] for i in (first, *others)]

    def pairs(self) -> Pairs:
        """The second model of each pair against its first, on the same items."""
        seeing = [i for i, run in enumerate(self.runs) if not run.text_only]
        out = {}
        for i, j in combinations(seeing, 2):
            pair = [self.strict[i], self.strict[j]]
            out[i, j] = compare_with_first(pair)
        return out

    def warnings(self) -> list[Caveat]:
        """What limits the numbers: the caveats of a report, few items, and prompts."""
        warnings = list(caveats(self.strict))
        for position, kind in enumerate(table.KINDS):
            means = [gains[position] for gains in self.gains]
            most = max((mean.n for mean in means if mean is not None), default=0)
            for run, mean in zip(self.runs, means, strict=True):
                if mean is not None and mean.n < most:
                    text = f"its mean is over {mean.n} of {most} {kind} benchmarks"
                    warnings.append(Caveat(run.name, text))
        for row in self.rows["strict"]:
            n = row.first.n
            if n < FEW_ITEMS and not self._counts_groups(row):
                warnings.append(
                    Caveat(row.title, f"{n} items: one of them is {100 / n:.1f} points")
                )
            options = self._spec(row).get("init_args", {})
            for name in PROMPTS:
                if options.get(name):
                    text = f"its {name} is {options[name]!r}: with another the number is another"
                    warnings.append(Caveat(row.title, text))
        return warnings

    def _counts_groups(self, row: Row) -> bool:
        """Whether n of a row are groups, of which each may have many items."""
        results = [run.result(*row.definition) for run in self.strict]
        return any(result.groups for result in results if result is not None)

    def _spec(self, row: Row) -> Mapping[str, Any]:
        """The class path and the options of a row's benchmark."""
        specs = self.runs[0].provenance.config.get("benchmarks", {})
        return specs.get(row.benchmark, {})

    def published(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The papers' numbers for benchmarks of these kinds, in `published.yaml`.

        `column` is the position of the row with the same metric and number of items, or None: the
        paper's number is then one of other items.
        """
        kinds = set()
        columns = {}
        for i, row in enumerate(rows):
            class_path = str(self._spec(row).get("class_path", ""))
            module, _, _ = class_path.rpartition(".")
            _, _, kind = module.rpartition(".")
            kinds.add(kind)
            columns[kind, row.metric, row.first.n] = i
        path = Path(__file__).with_name("published.yaml")
        text = path.read_text(encoding="utf-8")
        out = []
        for number in yaml.safe_load(text):
            if number["benchmark"] in kinds:
                measured = (number["benchmark"], number["metric"], number["n"])
                out.append({**number, "column": columns.get(measured)})
        return out

    def not_run(self) -> list[str]:
        """A line for each benchmark that could not run: on which models, if not on all, and why."""
        names: dict[tuple[str, str], list[str]] = {}
        for run in self.runs:
            for benchmark, why in run.not_run:
                names.setdefault((benchmark, why), []).append(run.name)
        lines = []
        for (benchmark, why), of in names.items():
            among = f" ({', '.join(of)})" if len(of) < len(self.runs) else ""
            lines.append(f"{benchmark}{among}: {why}")
        return lines

    def costs(self, i: int) -> list[str]:
        """The cells of a model under `COSTS`."""
        if self.runs[i].text_only:
            return [""] * len(COSTS)
        cost = self.entries[i].cost
        origin = self.runs[i].provenance
        weights = table.count(origin.trainable_parameters)
        size = speed = time = "–"
        if cost is not None:
            size = f"{cost.bytes_an_image:,}"
            if cost.pairs_a_second is not None:
                speed = table.count(round(cost.pairs_a_second))
        if origin.seconds:
            time = table.duration(origin.seconds)
        return [weights, size, speed, time]

    # -- the page -----------------------------------------------------------------------------

    def html(self) -> str:
        """The page."""
        views = Views(self.runs)
        warnings = self.warnings()
        parts = []
        for convention, rows in self.rows.items():
            if not rows:
                continue
            shown = list(map(views.row, rows))
            cells = [row["cells"] for row in shown]
            part = {
                "convention": convention,
                "heads": shown,
                "cells": list(zip(*cells, strict=True)),
                "published": self.published(rows),
            }
            parts.append(part)
        plot = ""
        if len(self.points) > 1:
            plot = pareto_plot(self.points, self.gains, views.colours)
        pairs = self.pairs()
        comparisons = chain.from_iterable(pairs.values())
        tested = sum(bool(one.verdict) for one in comparisons)
        return render(
            "leaderboard.html",
            models=[self._model(i, colour) for i, colour in enumerate(views.colours)],
            parts=parts,
            costs=COSTS,
            titles=table.TITLES,
            plot=plot,
            matrix=_matrix(pairs, len(self.runs)),
            pairs=pairs,
            note=f"{note_on_tests(self.runs)} Tests: {tested}; by chance about {BY_CHANCE} finds a "
            "difference.",
            warnings=warnings,
            flagged=[warning.benchmark for warning in warnings if warning.text_only],
            text_only=TEXT_ONLY,
            not_run=self.not_run(),
            sources=views.citations,
        )

    def _model(self, i: int, colour: int) -> dict[str, Any]:
        run = self.runs[i]
        origin = run.provenance
        backbones = {one.provenance.fingerprint for one in self.runs if not one.text_only}
        about = origin.adapter
        if len(backbones) > 1:
            about = f"{about} on {origin.backbone}"
        return {
            "number": i + 1,
            "name": run.name,
            "colour": colour,
            "text_only": run.text_only,
            "changes": list(map(_change, self.gains[i])),
            "front": i in self.front,
            "costs": self.costs(i),
            "about": about,
        }

    # -- tables for other programs ------------------------------------------------------------

    def markdown(self) -> str:
        """The tables of leaderboard.md: the models by the strict convention, then by the other.

        Mean changes count by the strict convention, so only its table has them.
        """
        lines = ["# vlmtune leaderboard"]
        for convention, rows in self.rows.items():
            if not rows:
                continue
            heads = ["model"]
            if convention == "strict":
                heads += ["gained", "retained"]
            heads += COSTS
            # What is known of a benchmark stands under its head.
            empty = [""] * (len(heads) - 1)
            heads += [f"{_title(row)} {row.directed}" for row in rows]
            facts = list(map(table.facts, rows))
            body = []
            for position, title in enumerate(table.TITLES):
                of_rows = [of_row[position] for of_row in facts]
                body.append([title, *empty, *of_rows])
            for i, run in enumerate(self.runs):
                cells = [run.name]
                if convention == "strict":
                    cells += _changes(self.gains[i])
                cells += self.costs(i)
                cells += [table.bracketed(row.cells[i]) for row in rows]
                body.append(cells)
            lines += ["", f"## {convention} convention", "", *markdown_table(heads, body)]
        lines += ["", "## Warnings", ""]
        lines += [f"- {one.benchmark}: {one.text}" for one in self.warnings()]
        missing = self.not_run()
        if missing:
            lines += ["", "## Not run", ""]
            lines += [f"- {line}" for line in missing]
        return "\n".join([*lines, ""])

    def csv(self) -> str:
        """A line for each model: its costs, its mean changes, and each primary metric."""
        rows = [*self.rows["strict"], *self.rows["reference"]]
        heads = list(CSV_COLUMNS)
        for row in rows:
            name = f"{_title(row)} {row.metric}"
            heads += [name, f"{name} low", f"{name} high"]
        lines: list[list[object]] = [list(map(no_formula, heads))]
        for i, run in enumerate(self.runs):
            origin = run.provenance
            cells: list[object] = [no_formula(run.name)]
            cells.append(str(run.text_only).lower())
            cells.append(origin.trainable_parameters)
            cost = self.entries[i].cost
            if cost is None:
                cells += [None, None]
            else:
                cells += [cost.bytes_an_image, cost.pairs_a_second]
            cells.append(origin.seconds or None)  # 0: not known, or nothing was trained
            numbers = list(self.gains[i])
            numbers += [row.cells[i] for row in rows]
            for number in numbers:
                if number is None:
                    cells += [None, None, None]
                else:
                    cells += [number.value, number.low, number.high]
            lines.append(cells)
        return csv_text(lines)


def _change(mean: MetricValue | None) -> dict[str, str]:
    if mean is None:
        return {"text": "–", "interval": ""}
    limits = table.signed_interval(mean.low, mean.high, mean.unit)
    return {"text": table.change(mean.value, mean.unit), "interval": limits}


def _changes(means: Sequence[MetricValue | None]) -> list[str]:
    """The cells of a model's mean changes in leaderboard.md."""
    cells = []
    for mean in means:
        change = _change(mean)
        limits = f" [{change['interval']}]" if change["interval"] else ""
        cells.append(change["text"] + limits)
    return cells


def _title(row: Row) -> str:
    return table.titled(row.benchmark.removesuffix(TWIN), row.convention)


def _strict(run: RunReport) -> RunReport:
    kept = [result for result in run.results if result.convention == "strict"]
    return replace(run, results=tuple(kept))


def _matrix(pairs: Pairs, models: int) -> list[list[dict[str, Any] | None]]:
    """Of each model against each other one: benchmarks on which it is better, and worse."""
    matrix: list[list[Any]] = [[None] * models for _ in range(models)]
    for (i, j), comparisons in pairs.items():
        verdicts = [one.verdict for one in comparisons]
        better = verdicts.count("better")
        worse = verdicts.count("worse")
        differing = (better + worse) / max(1, len(verdicts))
        shade = round(100 * differing)
        key = f"pair-{i + 1}-{j + 1}"
        matrix[j][i] = {"shade": shade, "key": key, "better": better, "worse": worse}
        matrix[i][j] = {"shade": shade, "key": key, "better": worse, "worse": better}
    return matrix
