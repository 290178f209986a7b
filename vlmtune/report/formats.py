"""The numbers of runs for other programs: CSV with every metric, LaTeX with the primary ones.

In: run reports. Out: texts, in files. Never: a cell that a spreadsheet takes for a formula.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from vlmtune.report.printable import printable
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import seeds_of
from vlmtune.report.table import COLUMNS, TITLES, Row, check_runs, facts, interval, number, sections
from vlmtune.storage.files import write_text

CSV_COLUMNS = (
    *("run", "benchmark", "version", "convention", "kind", "metric", "value"),
    *(column.title for column in COLUMNS),
    *("low", "high", "unit", "higher_is_better", "primary", "text_only", "seed"),
)
MATHS = {"n": "$n$"}  # titles that are symbols
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # The default font encoding has other signs in place of these.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def write_formats(
    runs: Sequence[RunReport], csv: Path | None, latex: Path | None, mteb: Path | None
) -> None:
    """Writes the runs to the files, and to the folder for mteb, that are not None."""
    if csv is not None:
        write_text(csv, to_csv(runs))
    if latex is not None:
        write_text(latex, to_latex(runs))
    if mteb is not None:
        from vlmtune.report.mteb_results import write_mteb  # few reports need its form

        write_mteb(mteb, runs)


def to_csv(runs: Sequence[RunReport]) -> str:
    """Writes one line for each metric of each benchmark of each run, and of each seed of a run.

    Numbers have full precision, fractions stay fractions, undefined values are empty.
    """
    check_runs(runs)
    lines: list[Sequence[object]] = [CSV_COLUMNS]
    for run in chain.from_iterable(map(seeds_of, runs)):
        for result in run.results:
            origin = (run.name, *result.definition, result.kind)
            for name, metric in result.metrics.items():
                cells: list[object] = []
                # Strangers chose the names: a terminal or a spreadsheet must not obey them.
                for text in (*origin, name):
                    cells.append(no_formula(printable(text)))
                cells.append(metric.value)
                cells += [column.value(metric) for column in COLUMNS]
                cells += [metric.low, metric.high, metric.unit]
                # Not Python's True and False: other programs know the words in small letters.
                for mark in (metric.higher_is_better, name == result.primary, run.text_only):
                    cells.append(str(mark).lower())
                cells.append(run.provenance.seed)
                lines.append(cells)
    return csv_text(lines)


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Returns the text of a csv, each line from its cells."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def no_formula(text: str) -> str:
    """Returns a text that no spreadsheet takes for a formula: with ' before =, +, - and @.

    Example:
        >>> no_formula("=HYPERLINK(A1)"), no_formula("clip")
        ("'=HYPERLINK(A1)", 'clip')
    """
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def to_latex(runs: Sequence[RunReport]) -> str:
    """Writes a booktabs `tabular`: benchmarks as rows, runs as columns, the best in bold.

    The 95 % interval of each number is below it; of several seeds, the lowest and the highest.
    """
    check_runs(runs)
    titles = [MATHS.get(title) or title.capitalize() for title in TITLES]
    names = [escaped(run.name) for run in runs]
    numeric_columns = "r" * (len(TITLES) + len(runs))
    lines = [
        r"% Needs \usepackage{booktabs}. Brackets: 95 % intervals, or the range of several seeds.",
        rf"\begin{{tabular}}{{ll{numeric_columns}}}",
        r"\toprule",
        _latex_line(["Benchmark", "Metric", *titles, *names]),
        r"\midrule",
    ]
    for row in chain.from_iterable(part.primary for part in sections(runs)):
        left = [escaped(text) for text in (row.title, row.directed, *facts(row))]
        blank = [""] * len(left)
        scores = [_score(row, i) for i in range(len(runs))]
        intervals = [_interval(row, i) for i in range(len(runs))]
        lines.append(_latex_line(left + scores))
        if any(intervals):
            lines.append(_latex_line(blank + intervals))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    r"""Escapes the characters that LaTeX treats specially.

    Example:
        >>> print(escaped("map_seen ↑ 50 %"))
        map\_seen $\uparrow$ 50 \%
    """
    one_line = " ".join(text.split())
    return "".join(SPECIAL.get(letter, letter) for letter in one_line)


def _score(row: Row, i: int) -> str:
    metric = row.cells[i]
    if metric is None:
        return "--"
    text = escaped(number(metric.value, metric.unit))
    if i in row.best:
        return rf"\textbf{{{text}}}"
    return text


def _interval(row: Row, i: int) -> str:
    metric = row.cells[i]
    limits = "" if metric is None else interval(metric)
    if not limits:
        return ""
    return rf"{{\scriptsize [{escaped(limits)}]}}"
