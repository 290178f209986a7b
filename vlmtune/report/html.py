"""The report as one HTML page that needs nothing else: styles, plots and pictures are inside."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vlmtune.report import table
from vlmtune.report.plots import curve_plot, dot_plot
from vlmtune.report.results import RunReport
from vlmtune.report.table import Row, check_runs, rows, series, zero_shot
from vlmtune.report.thumbnails import data_uri
from vlmtune.types import Example, Metric

SHORT_COMMIT, SHORT_DIGEST = 10, 12


def to_html(runs: Sequence[RunReport]) -> str:
    """Writes the page.

    Raises:
        UserError: There are no runs, or two have one name.
    """
    check_runs(runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": table.count, "duration": table.duration}
    everything = rows(runs)
    primary = [row for row in everything if row.primary]
    return environment.get_template("page.html").render(
        runs=[_run(run, colour) for run, colour in zip(runs, series(runs), strict=True)],
        heads=[_head(row) for row in primary],
        scores=[[_cell(row, i, zero_shot(runs)) for row in primary] for i in range(len(runs))],
        tiles=[_tile(row, runs) for row in primary],
        details=[
            {**_head(row), "cells": [_cell(row, i, None) for i in range(len(runs))]}
            for row in everything
        ],
        plots=_plots(primary, runs),
        curves=_curves(runs),
        gallery=_gallery(runs),
        not_run=[(run.name, name, why) for run in runs for name, why in run.not_run],
        sources={result.benchmark: result.citation for run in runs for result in run.results},
    )


def _run(run: RunReport, colour: int) -> dict[str, Any]:
    origin = run.provenance
    return {
        "name": run.name,
        "series": colour,
        "origin": origin,
        "commit": origin.commit[:SHORT_COMMIT]
        + ("-dirty" if origin.commit.endswith("-dirty") else ""),
        "fingerprint": origin.fingerprint[:SHORT_DIGEST],
        "date": origin.date.replace("T", " ").removesuffix("+00:00"),
    }


def _head(row: Row) -> dict[str, Any]:
    return {
        "benchmark": row.benchmark,
        "version": row.version,
        "metric": row.metric,
        "arrow": row.arrow,
        "primary": row.primary,
        "n": row.first.n,
        "chance": table.chance(row.first),
    }


def _cell(row: Row, i: int, reference: int | None) -> dict[str, Any] | None:
    """One number as it is shown, with its distance from the zero-shot run."""
    metric = row.cells[i]
    if metric is None:
        return None
    base = None if reference in (None, i) else row.cells[reference]
    return {
        "text": table.number(metric.value, metric.unit),
        "interval": table.interval(metric),
        "best": i in row.best,
        "gain": "" if base is None else _gain(metric, base),
        "direction": "" if base is None else _direction(metric, base),
    }


def _gain(metric: Metric, base: Metric) -> str:
    factor, digits = (100, 1) if metric.unit == "fraction" else (1, table.UNIT_DIGITS[metric.unit])
    change = round(factor * (metric.value - base.value), digits)
    return f"{change:+.{digits}f}" if change else f"±{0:.{digits}f}"


def _direction(metric: Metric, base: Metric) -> str:
    if metric.value == base.value:
        return ""
    return "better" if (metric.value > base.value) == metric.higher_is_better else "worse"


def _tile(row: Row, runs: Sequence[RunReport]) -> dict[str, Any]:
    """The best number of a benchmark at a glance, on a scale with chance."""
    present = [i for i, cell in enumerate(row.cells) if cell is not None]
    best = min(row.best, default=present[-1])
    metric = row.cells[best]
    assert metric is not None
    shown = metric.unit == "fraction"
    return {
        **_head(row),
        "text": table.number(metric.value, metric.unit),
        "run": runs[best].name,
        "series": series(runs)[best],
        "share": 100 * metric.value if shown else None,
        "mark": 100 * metric.chance if shown and metric.chance is not None else None,
    }


def _plots(primary: Sequence[Row], runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    names = [run.name for run in runs]
    return [
        # The SVG is our own, escaped by matplotlib.
        {**_head(row), "svg": Markup(dot_plot(row, names, series(runs), f"dots{i}"))}  # noqa: S704
        for i, row in enumerate(primary)
    ]


def _curves(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """One plot for each curve that holds a number."""
    names = dict.fromkeys(
        name
        for run in runs
        for name, curve in run.curves.items()
        if any(value is not None for _, value in curve)
    )
    colours = series(runs)

    def drawn(name: str, key: str) -> Markup:
        return Markup(curve_plot([run.curves.get(name) for run in runs], colours, key))  # noqa: S704

    return [
        {
            "name": name,
            "svg": drawn(name, f"curve{i}"),
            "runs": [
                {"name": run.name, "series": series(runs)[j]}
                for j, run in enumerate(runs)
                if run.curves.get(name)
            ],
        }
        for i, name in enumerate(names)
    ]


def _gallery(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """Examples by benchmark, then by run."""
    names = dict.fromkeys(
        result.benchmark for run in runs for result in run.results if result.examples
    )
    return [
        {
            "benchmark": name,
            "runs": [
                {
                    "name": run.name,
                    "series": series(runs)[i],
                    "right": sum(example.correct for example in result.examples),
                    "examples": [_example(example) for example in result.examples],
                }
                for i, run in enumerate(runs)
                for result in run.results
                if result.benchmark == name and result.examples
            ],
        }
        for name in names
    ]


def _example(example: Example) -> dict[str, Any]:
    return {
        "query": example.query,
        "correct": example.correct,
        "images": [
            {"uri": data_uri(image), "name": image.path.name, "score": f"{score:.3g}", "true": true}
            for image, score, true in zip(example.images, example.scores, example.true, strict=True)
        ],
    }
