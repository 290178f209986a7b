"""Writes the report as one HTML page, by the template `page.html`, with everything inside.

In: run reports. Out: `report.html` and `report.md`. Never: a request to another host. A policy in
the page forbids them, and any script but `page.js`, without which the page shows the same.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vlmtune.report import table
from vlmtune.report.caveats import TEXT_ONLY, caveats
from vlmtune.report.charts import charts
from vlmtune.report.differences import Comparison, compare_with_first, note_on_tests
from vlmtune.report.finding import findings
from vlmtune.report.flips import flips
from vlmtune.report.formats import to_csv, to_latex
from vlmtune.report.items_file import Items
from vlmtune.report.markdown import templates, to_markdown
from vlmtune.report.origin import common_facts, origin_facts
from vlmtune.report.plots import curve_plot
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import check_runs, sections
from vlmtune.report.views import Views, safe
from vlmtune.storage.files import all_or_none, write_text


def write_report(
    folder: Path,
    runs: Sequence[RunReport],
    items: Mapping[str, Items] | None = None,
    trials: Mapping[str, Any] | None = None,
) -> Path:
    """Writes `report.md` and `report.html`, both or none, the runs side by side in the order given.

    The first run that is not text-only is the one to compare the others with. `items` has the items
    of runs by name; with them the won and lost ones are shown. `trials` is the table of a sweep, of
    `trials_view`. Returns the path of `report.html`.
    """
    groups = flips(compare_with_first(runs), runs, items or {})
    # Both texts before the first file: an error leaves the earlier report as it is.
    markdown, html = to_markdown(runs), to_html(runs, groups, trials)
    with all_or_none():
        write_text(folder / "report.md", markdown)
        write_text(folder / "report.html", html)
    return folder / "report.html"


def to_html(
    runs: Sequence[RunReport],
    groups: Sequence[dict[str, Any]] = (),
    trials: Mapping[str, Any] | None = None,
) -> str:
    """Writes the page; `groups` are those of `flips`, `trials` those of `trials_view`."""
    check_runs(runs)
    environment = templates(autoescape=True)
    environment.filters["breaks"] = _breaks
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    views = Views(runs)
    parts = sections(runs)
    primary = list(chain.from_iterable(part.primary for part in parts))
    comparisons = compare_with_first(runs)
    largest = _largest(comparisons)
    scale = [table.amount(change, unit).lstrip("+±") for unit, change in largest.items()]
    base = None if views.baseline is None else views.names[views.baseline]
    cards = []
    for run, colour in zip(runs, views.colours, strict=True):
        card = {"name": run.name, "colour": colour, "facts": origin_facts(run)}
        cards.append({**card, "text_only": run.text_only, "not_run": run.not_run})
    return environment.get_template("page.html").render(
        script=Markup(script),  # noqa: S704
        script_digest=b64encode(sha256(script.encode()).digest()).decode(),
        runs=cards,
        seeing=[run.name for run in runs if not run.text_only],
        findings=findings(runs),
        common=common_facts(runs),
        trials=trials,
        baseline=base,
        text_only=TEXT_ONLY,
        note=note_on_tests(runs),
        charts=charts(primary, list(map(views.label, primary)), views.names, views.colours),
        titles=table.TITLES,
        primary=list(map(views.row, primary)),
        texts={"CSV": to_csv(runs), "LaTeX": to_latex(runs)},
        comparisons=comparisons,
        largest=largest,
        scale=", ".join(scale),
        notes=caveats(runs),
        flips=groups,
        sections=list(map(views.section, parts)),
        curves=_curves(runs, views),
        sources=views.citations,
    )


def _breaks(name: str) -> Markup:
    """A name with line breaks allowed after its underscores and slashes only."""
    parts = re.split(r"(?<=[_/])", name)
    return Markup("<wbr>").join(parts)


def _largest(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The largest change of each unit, which the longest bar stands for."""
    largest: dict[str, float] = {}
    for one in comparisons:
        unit = one.metric.unit
        largest[unit] = max(largest.get(unit, 0.0), abs(one.change or 0.0))
    return largest


def _curves(runs: Sequence[RunReport], views: Views) -> list[dict[str, Any]]:
    """One plot for each curve with a finite value; of a benchmark only the primary metric."""
    minor = set()
    names = dict[str, None]()
    for run in runs:
        for result in run.results:
            others = result.metrics.keys() - {result.primary}
            minor |= {f"{result.benchmark}/{name}" for name in others}
        for name, curve in run.curves.items():
            if any(value is not None for _, value in curve):
                names[name] = None
    out = []
    for name in names:
        if name in minor:
            continue
        curves = [run.curves.get(name) for run in runs]
        svg = safe(curve_plot(curves, views.colours, views.key()))
        legend = []
        for run, colour, curve in zip(runs, views.colours, curves, strict=True):
            if curve:
                legend.append({"name": run.name, "colour": colour})
        out.append({"name": name, "svg": svg, "runs": legend})
    return out
