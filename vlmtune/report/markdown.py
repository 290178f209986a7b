"""The report as Markdown tables.

In: run reports. Out: the text of `report.md`. Never: a tag of HTML.
"""

import re
from collections.abc import Sequence
from itertools import chain

from vlmtune.report import table
from vlmtune.report.caveats import TEXT_ONLY, caveats
from vlmtune.report.differences import ALONE, TEST, Comparison, compare_with_first, items_alone
from vlmtune.report.finding import findings
from vlmtune.report.origin import origin_facts
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, Section

TAG = re.compile(r"<(?=[A-Za-z/!?])")
NOTE = (
    "Brackets hold 95 % intervals (Wilson for proportions, wider if items share images or "
    "captions; bootstrap or Student's t for other means); of several seeds they hold the lowest "
    "and the highest. n counts items; those that share an image or captions are one cluster. "
    "↑ and ↓ give the direction; the best run is bold. Numbers share a row only if benchmark, "
    "version of the metric, convention and number of items agree."
)
KNOWS = "What the embedding still knows"


def to_markdown(runs: Sequence[RunReport]) -> str:
    """Writes the runs side by side.

    The finding, primary metrics, changes from the first run, retained abilities, sensitivities, caveats, one
    table for each benchmark, provenance, sources.
    """
    table.check_runs(runs)
    parts = table.sections(runs)
    comparisons = compare_with_first(runs)
    primary = list(chain.from_iterable(part.primary for part in parts))
    lines = ["# vlmtune report", ""]
    for finding in findings(runs):
        lines += [_cell(finding), ""]
    lines += [*_primary(runs, primary), "", NOTE, ""]
    if any(run.text_only for run in runs):
        lines += [TEXT_ONLY, ""]
    lines += _not_run(runs)
    first = table.baseline(runs)
    if first is not None:
        name = _cell(runs[first].name)
        heads = {
            "compositional": f"Change from {name}",
            "retained": f"Retained abilities, change from {name}",
            "sensitivity": f"{KNOWS}, change from {name}",
        }
        for kind, head in heads.items():
            lines += _changes(head, comparisons, runs, kind)
    lines += _caveats(runs)
    for part in parts:
        lines += [f"## {_title(part)}", "", *_section(runs, part), ""]
    lines += ["## Runs", ""]
    for run in runs:
        lines += [f"### {_cell(run.name)}", ""]
        lines += [f"- {name}: {_cell(text)}" for name, text in origin_facts(run).items()]
        lines.append("")
    lines += ["## Sources", ""]
    sources: dict[str, str] = {}
    for run in runs:
        sources |= {result.benchmark: result.citation for result in run.results}
    lines += [f"- {_cell(name)}: {_cell(text)}" for name, text in sources.items()]
    return "\n".join(lines).rstrip() + "\n"


def _primary(runs: Sequence[RunReport], rows: Sequence[Row]) -> list[str]:
    lines = _head(["benchmark", "metric"], runs)
    blank = [""] * (1 + len(table.TITLES))
    numbers = []
    for run in runs:
        origin = run.provenance
        text = table.count(origin.trainable_parameters) if origin.known else "?"
        numbers.append(text)
    lines.append(_line(["*trainable parameters*", *blank, *numbers]))
    for row in rows:
        scores = [_score(row, i) for i in range(len(runs))]
        lines.append(_line([row.title, row.directed, *table.facts(row), *scores]))
    return lines


def _not_run(runs: Sequence[RunReport]) -> list[str]:
    lines = []
    for run in runs:
        for name, why in run.not_run:
            lines.append(f"- {_cell(name)} of {_cell(run.name)}: not run: {_cell(why)}")
    return [*lines, ""] if lines else []


def _changes(
    head: str, comparisons: Sequence[Comparison], runs: Sequence[RunReport], kind: str
) -> list[str]:
    # A table for each kind: of a sensitivity neither more nor less is better.
    of_kind = [comparison for comparison in comparisons if comparison.result.kind == kind]
    if not of_kind:
        return []
    columns = ["benchmark", "run", "change", "95 % interval", "won", "lost", "of", "p", "verdict"]
    lines = [_line(columns), _line(["---", "---", *["---:"] * 6, "---"])]
    lines += [_line(_change(comparison, runs[comparison.run].name)) for comparison in of_kind]
    lines = [f"## {head}", "", *lines, "", TEST, ""]
    if single := items_alone(runs):
        lines += [f"{ALONE} {', '.join(map(_cell, single))}.", ""]
    return lines


def _change(comparison: Comparison, name: str) -> list[str]:
    texts = comparison.texts
    left = [comparison.title, name, texts["change"] or "–"]
    if comparison.paired is None:
        return [*left, "", "", "", "", "", f"not tested: {comparison.reason}"]
    p = f"{texts['p']} ({texts['test']})" if texts["p"] else "–"
    counts = [texts[name] for name in ("won", "lost", "n")]
    return [*left, texts["interval"] or "–", *counts, p, comparison.verdict]


def _caveats(runs: Sequence[RunReport]) -> list[str]:
    lines: list[str] = []
    for caveat in caveats(runs):
        mark = "**Text-only:** " if caveat.text_only else ""
        lines.append(f"- {mark}{_cell(f'{caveat.benchmark}: {caveat.text}')}")
        lines += [f"  - {_cell(example)}" for example in caveat.examples]
    return ["## Caveats", "", *lines, ""] if lines else []


def _title(part: Section) -> str:
    head = part.head
    kind = {"retained": ", retained ability", "sensitivity": ", sensitivity"}.get(part.kind, "")
    return _cell(f"{head.benchmark} (v{head.version}, {head.convention} convention{kind})")


def _section(runs: Sequence[RunReport], part: Section) -> list[str]:
    lines = _head(["metric"], runs)
    for row in part.rows:
        scores = [_score(row, i) for i in range(len(runs))]
        lines.append(_line([row.directed, *table.facts(row), *scores]))
    return lines


def _score(row: Row, i: int) -> str:
    metric = row.cells[i]
    if metric is None:
        return "–"
    text = table.bracketed(metric)
    if i not in row.best:
        return text
    # Only the number is bold, not its interval.
    score, bracket, interval = text.partition(" [")
    return f"**{score}**{bracket}{interval}"


def _head(names: Sequence[str], runs: Sequence[RunReport]) -> list[str]:
    """The head of a table: names to the left, then facts and scores, flush right."""
    right = [*table.TITLES, *(run.name for run in runs)]
    rule = ["---"] * len(names) + ["---:"] * len(right)
    return [_line([*names, *right]), _line(rule)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    """One line without column borders."""
    return _line_of_text(text).replace("|", "\\|")


def _line_of_text(text: str) -> str:
    """One line without HTML: a tag in a caption stays text."""
    return TAG.sub("&lt;", " ".join(text.split()))
