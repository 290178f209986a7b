"""The report as one HTML page that needs nothing else: styles, plots and pictures are inside."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vlmtune.report import table
from vlmtune.report.caveats import remarks
from vlmtune.report.charts import changes, charts
from vlmtune.report.compare import LEVEL, Against, against_first
from vlmtune.report.plots import curve_plot
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, baseline, check_runs, sections, series
from vlmtune.report.views import Views, safe

SHORT_COMMIT, SHORT_DIGEST = 10, 12
TILES = 4  # benchmarks, up to which each has a tile in the head of the page


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
    environment.filters |= {"count": table.count, "duration": table.duration, "breaks": _breaks}
    views, parts, first = Views(runs), sections(runs), baseline(runs)
    primary = [row for part in parts for row in part.primary]
    notes = remarks(runs)
    compared = against_first(runs)
    return environment.get_template("page.html").render(
        runs=[_run(run, colour) for run, colour in zip(runs, series(runs), strict=True)],
        baseline=None if first is None else runs[first].name,
        level=LEVEL,
        tiles=[_tile(row, runs) for row in primary] if len(primary) <= TILES else [],
        charts=charts(primary, views.names, series(runs)),
        primary=[views.row(row) for row in primary],
        warned={note.benchmark for note in notes if note.serious},
        compared=_compared(compared, runs, "compositional"),
        forgotten=_compared(compared, runs, "retained"),
        notes=notes,
        not_run=[(run.name, name, why) for run in runs for name, why in run.not_run],
        sections=[views.section(part) for part in parts],
        curves=_curves(runs, views),
        sources={result.benchmark: result.citation for run in runs for result in run.results},
    )


def _breaks(name: str) -> Markup:
    """A name that may be broken after its underscores and slashes, and nowhere else."""
    parts = re.split(r"(?<=[_/])", name)
    return Markup("<wbr>").join(parts)


def _run(run: RunReport, colour: int) -> dict[str, Any]:
    origin = run.provenance
    return {
        "name": run.name,
        "series": colour,
        "blind": run.text_only,
        "origin": origin,
        "commit": origin.commit[:SHORT_COMMIT]
        + ("-dirty" if origin.commit.endswith("-dirty") else ""),
        "fingerprint": origin.fingerprint[:SHORT_DIGEST],
        "date": origin.date.replace("T", " ").removesuffix("+00:00"),
    }


def _tile(row: Row, runs: Sequence[RunReport]) -> dict[str, Any]:
    """The best number of a benchmark at a glance, on a scale with chance."""
    present = [i for i, cell in enumerate(row.cells) if cell is not None]
    seeing = [i for i in present if i not in row.text_only] or present
    best = min(row.best, default=seeing[-1])
    metric = row.cells[best]
    assert metric is not None
    shown = metric.unit == "fraction"
    return {
        "title": row.title,
        "metric": row.metric,
        "arrow": row.arrow,
        "chance": table.chance(metric),
        "text": table.number(metric.value, metric.unit),
        "run": runs[best].name,
        "series": series(runs)[best],
        "share": 100 * metric.value if shown else None,
        "mark": 100 * metric.chance if shown and metric.chance is not None else None,
    }


def _compared(
    compared: Sequence[Against], runs: Sequence[RunReport], kind: str
) -> list[dict[str, Any]]:
    """For each run that is compared, its benchmarks of a kind."""
    found = []
    for i, run in enumerate(runs):
        own = [one for one in compared if one.run == i and one.result.kind == kind]
        bars = changes([(one.change or 0.0, one.metric.unit) for one in own])
        lines = [
            {**_against(one), "side": side, "length": length}
            for one, (side, length) in zip(own, bars, strict=True)
        ]
        if lines:
            found.append({"name": run.name, "series": series(runs)[i], "lines": lines})
    return found


def _against(one: Against) -> dict[str, Any]:
    paired, metric = one.paired, one.metric
    line = {
        "title": one.title,
        "metric": one.result.primary,
        "change": "" if one.change is None else table.change(one.change, metric.unit),
        "direction": one.direction,
        "verdict": one.verdict,
        "why": one.why,
        "interval": "",
        "p": "",
        "test": "",
    }
    if paired is not None:
        line |= {"won": paired.won, "lost": paired.lost, "n": paired.n, "test": paired.test}
        line["p"] = "" if paired.p is None else table.p_value(paired.p)
        line["interval"] = table.span(paired.low, paired.high, metric.unit)
    return line


def _curves(runs: Sequence[RunReport], views: Views) -> list[dict[str, Any]]:
    """One plot for each curve that holds a number; of a benchmark only its primary metric."""
    minor = {
        f"{result.benchmark}/{name}"
        for run in runs
        for result in run.results
        for name in result.metrics
        if name != result.primary
    }
    names = dict.fromkeys(
        name
        for run in runs
        for name, curve in run.curves.items()
        if name not in minor and any(value is not None for _, value in curve)
    )
    colours = series(runs)

    def drawn(name: str) -> Markup:
        svg = curve_plot([run.curves.get(name) for run in runs], colours, views.key())
        return safe(svg)

    return [
        {
            "name": name,
            "svg": drawn(name),
            "runs": [
                {"name": run.name, "series": colour}
                for run, colour in zip(runs, colours, strict=True)
                if run.curves.get(name)
            ],
        }
        for name in names
    ]
