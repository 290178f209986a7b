"""Writes the report as one HTML page, by the template `page.html`, with everything inside.

In: run reports. Out: `report.html` and `report.md`. Never: a request to another host. A policy in
the page forbids them, and any script but `page.js`, without which the page shows the same.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from vlmtune.report import table
from vlmtune.report.caveats import TEXT_ONLY, caveats
from vlmtune.report.charts import Change, changes, charts
from vlmtune.report.differences import LEVEL, Comparison, compare_with_first, items_alone
from vlmtune.report.flips import flips
from vlmtune.report.items_file import Items
from vlmtune.report.markdown import to_markdown
from vlmtune.report.plots import curve_plot
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import SeededRun
from vlmtune.report.table import Row, baseline, check_runs, colours, sections
from vlmtune.report.views import Views, safe
from vlmtune.storage.files import all_or_none, write_text

SHORT_COMMIT, SHORT_DIGEST = 10, 12
TILES = 4  # most benchmarks that get a tile at the top of the page


def write_report(
    folder: Path, runs: Sequence[RunReport], items: Mapping[str, Items] | None = None
) -> Path:
    """Writes `report.md` and `report.html`, both or none, the runs side by side in the order given.

    The first run that is not text-only is the one to compare the others with. `items` has the items
    of runs by name; with them the won and lost ones are shown. Returns the path of `report.html`.
    """
    groups = flips(compare_with_first(runs), runs, items or {})
    markdown, html = to_markdown(runs, groups), to_html(runs, groups)
    with all_or_none():
        write_text(folder / "report.md", markdown)
        write_text(folder / "report.html", html)
    return folder / "report.html"


def to_html(runs: Sequence[RunReport], groups: Sequence[dict[str, Any]] = ()) -> str:
    """Writes the page; `groups` are those of `flips`."""
    check_runs(runs)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": table.count, "duration": table.duration, "breaks": _breaks}
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    views, parts, first = Views(runs), sections(runs), baseline(runs)
    primary = [row for part in parts for row in part.primary]
    notes = caveats(runs)
    comparisons = compare_with_first(runs)
    lengths = changes([(one.change or 0.0, one.metric.unit) for one in comparisons])
    bars = list(zip(comparisons, lengths, strict=True))
    return environment.get_template("page.html").render(
        script=Markup(script),  # noqa: S704
        script_digest=b64encode(sha256(script.encode()).digest()).decode(),
        runs=[_run(run, colour) for run, colour in zip(runs, colours(runs), strict=True)],
        baseline=None if first is None else runs[first].name,
        text_only=TEXT_ONLY,
        level=LEVEL,
        single=items_alone(runs),
        tiles=[_tile(row, runs) for row in primary] if len(primary) <= TILES else [],
        charts=charts(primary, views.names, colours(runs)),
        primary=[views.row(row) for row in primary],
        flagged={note.benchmark for note in notes if note.text_only},
        compositional=_compared(bars, runs, "compositional"),
        retained=_compared(bars, runs, "retained"),
        sensitivity=_compared(bars, runs, "sensitivity"),
        largest=_largest(comparisons),
        notes=notes,
        flips=groups,
        not_run=[(run.name, name, why) for run in runs for name, why in run.not_run],
        sections=[views.section(part) for part in parts],
        curves=_curves(runs, views),
        sources={result.benchmark: result.citation for run in runs for result in run.results},
    )


def _breaks(name: str) -> Markup:
    """A name with line breaks allowed after its underscores and slashes only."""
    parts = re.split(r"(?<=[_/])", name)
    return Markup("<wbr>").join(parts)


def _run(run: RunReport, colour: int) -> dict[str, Any]:
    origin = run.provenance
    return {
        "name": run.name,
        "colour": colour,
        "text_only": run.text_only,
        "seed": run.seeds if isinstance(run, SeededRun) else origin.seed,
        "origin": origin,
        "commit": origin.commit[:SHORT_COMMIT]
        + ("-dirty" if origin.commit.endswith("-dirty") else ""),
        "fingerprint": origin.fingerprint[:SHORT_DIGEST],
        "date": origin.date.replace("T", " ").removesuffix("+00:00"),
    }


def _tile(row: Row, runs: Sequence[RunReport]) -> dict[str, Any]:
    """The best number of a benchmark, on a scale with chance."""
    present = [i for i, cell in enumerate(row.cells) if cell is not None]
    with_images = [i for i in present if i not in row.text_only] or present
    best = min(row.best, default=with_images[-1])
    metric = row.cells[best]
    assert metric is not None
    scaled = metric.unit == "fraction"
    return {
        "title": row.title,
        "metric": row.metric,
        "arrow": row.arrow,
        "chance": table.chance(metric),
        "text": table.number(metric.value, metric.unit),
        "run": runs[best].name,
        "colour": colours(runs)[best],
        "percent": 100 * metric.value if scaled else None,
        "mark": 100 * metric.chance if scaled and metric.chance is not None else None,
    }


def _compared(
    bars: Sequence[tuple[Comparison, Change]], runs: Sequence[RunReport], kind: str
) -> list[dict[str, Any]]:
    """The comparisons of each run, for benchmarks of one kind."""
    out = []
    for i, run in enumerate(runs):
        lines = [
            {**_comparison(one), "side": side, "length": length}
            for one, (side, length) in bars
            if one.run == i and one.result.kind == kind
        ]
        if lines:
            out.append({"name": run.name, "colour": colours(runs)[i], "lines": lines})
    return out


def _largest(comparisons: Sequence[Comparison]) -> str:
    """The change that the longest bar of each unit stands for."""
    largest: dict[str, float] = {}
    for one in comparisons:
        unit = one.metric.unit
        largest[unit] = max(largest.get(unit, 0.0), abs(one.change or 0.0))
    names = {"fraction": "points", "rank": "ranks"}
    texts = [
        f"{table.change(x, unit).lstrip('+±')} {names.get(unit, unit)}"
        for unit, x in largest.items()
    ]
    return ", ".join(texts)


def _comparison(comparison: Comparison) -> dict[str, Any]:
    paired, metric = comparison.paired, comparison.metric
    line = {
        "title": comparison.title,
        "metric": comparison.result.primary,
        "change": "" if comparison.change is None else table.change(comparison.change, metric.unit),
        "direction": comparison.direction,
        "verdict": comparison.verdict,
        "reason": comparison.reason,
        "interval": "",
        "p": "",
        "test": "",
    }
    if paired is not None:
        line |= {"won": paired.won, "lost": paired.lost, "n": paired.n, "test": paired.test}
        line["p"] = "" if paired.p is None else table.p_value(paired.p)
        line["interval"] = table.signed_interval(paired.low, paired.high, metric.unit)
    return line


def _curves(runs: Sequence[RunReport], views: Views) -> list[dict[str, Any]]:
    """One plot for each curve with a finite value; of a benchmark only the primary metric."""
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
    run_colours = colours(runs)

    def plot(name: str) -> Markup:
        return safe(curve_plot([run.curves.get(name) for run in runs], run_colours, views.key()))

    return [
        {
            "name": name,
            "svg": plot(name),
            "runs": [
                {"name": run.name, "colour": colour}
                for run, colour in zip(runs, run_colours, strict=True)
                if run.curves.get(name)
            ],
        }
        for name in names
    ]
