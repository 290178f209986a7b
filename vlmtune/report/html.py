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
from vlmtune.report.views import Views
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
    markdown = to_markdown(runs)
    html = to_html(runs, groups, trials)
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
    views = Views(runs)
    parts = sections(runs)
    primary = list(chain.from_iterable(part.primary for part in parts))
    labels = list(map(views.label, primary))
    comparisons = compare_with_first(runs)
    # The bars of one unit share a scale, on which the largest change is full.
    largest = _largest(comparisons)
    scale = []
    for unit, change in largest.items():
        length = table.amount(change, unit)
        if not length.startswith("±"):  # a bar of no length has no scale
            scale.append(length.removeprefix("+"))
    base = None if views.baseline is None else views.names[views.baseline]
    return render(
        "page.html",
        runs=_cards(runs, views),
        seeing=[run.name for run in runs if not run.text_only],
        findings=findings(runs),
        common=common_facts(runs),
        trials=trials,
        baseline=base,
        text_only=TEXT_ONLY,
        note=note_on_tests(runs),
        charts=charts(primary, labels, views.names, views.colours),
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


def render(template: str, **values: Any) -> str:
    """Fills a template of this room with values and with the script of all pages."""
    environment = templates(autoescape=True)
    environment.filters["breaks"] = _breaks
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    script_digest = sha256(script.encode()).digest()
    return environment.get_template(template).render(
        script=Markup(script),  # noqa: S704
        script_digest=b64encode(script_digest).decode(),
        **values,
    )


def _cards(runs: Sequence[RunReport], views: Views) -> list[dict[str, Any]]:
    """What the page says of each run."""
    cards = []
    for run, colour in zip(runs, views.colours, strict=True):
        card = {
            "name": run.name,
            "colour": colour,
            "facts": origin_facts(run),
            "text_only": run.text_only,
            "not_run": run.not_run,
        }
        cards.append(card)
    return cards


def _breaks(name: str) -> Markup:
    """A name with line breaks allowed after its underscores and slashes only."""
    parts = re.split(r"(?<=[_/])", name)
    return Markup("<wbr>").join(parts)


def _largest(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """The largest change of each unit, which the longest bar stands for."""
    largest: dict[str, float] = {}
    for comparison in comparisons:
        unit = comparison.metric.unit
        size = abs(comparison.change or 0.0)
        largest[unit] = max(size, largest.get(unit, 0.0))
    return largest


def _minor_metrics(runs: Sequence[RunReport]) -> set[str]:
    """The names of the curves of metrics that are not primary."""
    names = set()
    for run in runs:
        for result in run.results:
            for metric in result.metrics:
                if metric != result.primary:
                    names.add(f"{result.benchmark}/{metric}")
    return names


def _curves(runs: Sequence[RunReport], views: Views) -> list[dict[str, Any]]:
    """One plot for each curve with a finite value; of a benchmark only the primary metric."""
    minor = _minor_metrics(runs)
    names: dict[str, None] = {}  # without repeats, in the order of the runs
    for run in runs:
        for name, curve in run.curves.items():
            is_finite = any(value is not None for _, value in curve)
            if is_finite and name not in minor:
                names[name] = None
    out = []
    for name in names:
        curves = [run.curves.get(name) for run in runs]
        svg = curve_plot(curves, views.colours, views.key())
        legend = []
        for run, colour, curve in zip(runs, views.colours, curves, strict=True):
            if curve:
                legend.append({"name": run.name, "colour": colour})
        out.append({"name": name, "svg": svg, "runs": legend})
    return out
