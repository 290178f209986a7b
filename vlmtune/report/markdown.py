"""The report as Markdown tables."""

from collections.abc import Sequence

from vlmtune.report.results import RunReport
from vlmtune.report.table import Row, chance, check_runs, count, duration, interval, number, rows

NOTE = (
    "Brackets hold 95 % intervals (Wilson for proportions, bootstrap for means); ↑ and ↓ give the "
    "direction; the best run is bold. Numbers share a column only where benchmark, version of the "
    "metric and number of items agree."
)


def to_markdown(runs: Sequence[RunReport]) -> str:
    """Writes the runs side by side: primary metrics, all metrics, provenance, sources.

    Raises:
        UserError: There are no runs, or two have one name.
    """
    check_runs(runs)
    table = rows(runs)
    lines = ["# vlmtune report", "", *_primary(runs, [row for row in table if row.primary])]
    lines += ["", NOTE, "", *_not_run(runs), "## All metrics", "", *_all(runs, table), ""]
    lines += ["## Runs", ""]
    for run in runs:
        lines += [f"### {_cell(run.name)}", "", *_provenance(run), ""]
    lines += ["## Sources", ""]
    sources = {result.benchmark: result.citation for run in runs for result in run.results}
    lines += [f"- {_cell(name)}: {_cell(text)}" for name, text in sources.items()]
    return "\n".join(lines).rstrip() + "\n"


def _primary(runs: Sequence[RunReport], table: Sequence[Row]) -> list[str]:
    heads = [f"{row.benchmark} {row.metric} {row.arrow} (n = {row.first.n})" for row in table]
    lines = [_line(["run", "trained parameters", *heads])]
    lines.append(_line(["---", "---:", *["---:"] * len(heads)]))
    lines.append(_line(["*chance*", "", *[chance(row.first) for row in table]]))
    for i, run in enumerate(runs):
        trained = count(run.provenance.trainable_parameters)
        lines.append(_line([run.name, trained, *[_score(row, i) for row in table]]))
    return lines


def _not_run(runs: Sequence[RunReport]) -> list[str]:
    lines = [
        f"- {_cell(name)} of {_cell(run.name)}: not run: {_cell(why)}"
        for run in runs
        for name, why in run.not_run
    ]
    return [*lines, ""] if lines else []


def _all(runs: Sequence[RunReport], table: Sequence[Row]) -> list[str]:
    lines = [_line(["benchmark", "metric", "n", "chance", *[run.name for run in runs]])]
    lines.append(_line(["---", "---", "---:", "---:", *["---:"] * len(runs)]))
    for row in table:
        name = f"{row.benchmark} (v{row.version})"
        scores = [_score(row, i) for i in range(len(runs))]
        metric = f"{row.metric} {row.arrow}".strip()
        lines.append(_line([name, metric, str(row.first.n), chance(row.first), *scores]))
    return lines


def _provenance(run: RunReport) -> list[str]:
    origin = run.provenance
    facts = {
        "backbone": f"{origin.backbone} ({origin.fingerprint[:12]})",
        "adapter": origin.adapter,
        "trained parameters": f"{origin.trainable_parameters:,}",
        "data": origin.data or "none",
        "time": duration(origin.seconds),
        "date": origin.date,
        "commit": origin.commit,
        "seed": "none" if origin.seed is None else str(origin.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
    }
    return [f"- {name}: {_cell(text)}" for name, text in facts.items()]


def _score(row: Row, i: int) -> str:
    metric = row.cells[i]
    if metric is None:
        return "–"
    text = number(metric.value, metric.unit)
    text = f"**{text}**" if i in row.best else text
    span = interval(metric)
    return f"{text} [{span}]" if span else text


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    """One line without column borders."""
    return " ".join(text.split()).replace("|", "\\|")
