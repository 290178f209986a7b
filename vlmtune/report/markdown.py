"""The report as Markdown tables, by the template `page.md`.

In: run reports. Out: the text of `report.md`. Never: a tag of HTML.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vlmtune.report import table
from vlmtune.report.caveats import TEXT_ONLY, caveats
from vlmtune.report.differences import compare_with_first, note_on_tests
from vlmtune.report.finding import findings
from vlmtune.report.markdown_table import cell_text, line
from vlmtune.report.origin import origin_facts
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row


def to_markdown(runs: Sequence[RunReport]) -> str:
    """Writes the runs side by side.

    The finding, primary metrics, changes from the first run by kind of benchmark, caveats, one
    table for each benchmark, provenance, sources.
    """
    table.check_runs(runs)
    parts = table.sections(runs)
    first = table.baseline(runs)
    name = "" if first is None else runs[first].name
    sources: dict[str, str] = {}
    parameters = []
    for run in runs:
        sources |= {result.benchmark: result.citation for result in run.results}
        origin = run.provenance
        text = table.count(origin.trainable_parameters) if origin.known else "?"
        parameters.append(text)
    environment = templates(finalize=cell_text)
    environment.filters["line"] = line
    text = environment.get_template("page.md").render(
        runs=runs,
        findings=findings(runs),
        titles=table.TITLES,
        parameters=parameters,
        primary=list(chain.from_iterable(part.primary for part in parts)),
        facts=table.facts,
        scores=_scores,
        text_only=TEXT_ONLY,
        comparisons=compare_with_first(runs),
        changes={
            "compositional": f"Change from {name}",
            "retained": f"Retained abilities, change from {name}",
            "sensitivity": f"What the embedding still knows, change from {name}",
        },
        test=note_on_tests(runs),
        caveats=caveats(runs),
        parts=parts,
        origin=origin_facts,
        sources=sources,
    )
    return text.rstrip() + "\n"


def templates(**options: Any) -> Environment:
    """The templates of this room, which refuse names that they are not given."""
    return Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def _scores(row: Row) -> list[str]:
    """The cells of the runs; of the best only the number is bold, not its interval."""
    texts = []
    for i, metric in enumerate(row.cells):
        text = table.bracketed(metric)
        if i in row.best:
            score, bracket, interval = text.partition(" [")
            text = f"**{score}**{bracket}{interval}"
        texts.append(text)
    return texts
