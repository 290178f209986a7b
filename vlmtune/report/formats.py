"""The numbers of runs for other programs: CSV with every metric, LaTeX with the primary ones."""

import csv
import io
from collections.abc import Sequence

from vlmtune.report.printable import printable
from vlmtune.report.run_report import RunReport
from vlmtune.report.seeds import seeds_of
from vlmtune.report.table import Row, chance, check_runs, interval, number, sections, size

COLUMNS = (
    *("run", "benchmark", "version", "convention", "kind", "metric", "value", "n", "clusters"),
    *("chance", "low", "high", "unit", "higher_is_better", "primary", "text_only", "seed"),
)
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def to_csv(runs: Sequence[RunReport]) -> str:
    """Writes one line for each metric of each benchmark of each run, and of each seed of a run.

    Numbers have full precision, fractions stay fractions, undefined values are empty.
    """
    check_runs(runs)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in [seed for column in runs for seed in seeds_of(column)]:
        for result in run.results:
            origin = (result.benchmark, result.version, result.convention, result.kind)
            for name, m in result.metrics.items():
                numbers = (m.value, m.n, m.clusters, m.chance, m.low, m.high, m.unit)
                marks = (m.higher_is_better, name == result.primary, run.text_only)
                flags = [str(mark).lower() for mark in marks]
                seed = run.provenance.seed
                texts = [no_formula(printable(text)) for text in (run.name, *origin, name)]
                writer.writerow([*texts, *numbers, *flags, seed])
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
    rows = [row for part in sections(runs) for row in part.primary]
    heads = ["Benchmark", "Metric", "$n$", "Chance", *[escaped(run.name) for run in runs]]
    lines = [
        r"% Needs \usepackage{booktabs}. Brackets: 95 % intervals, or the range of several seeds.",
        rf"\begin{{tabular}}{{ll{'r' * (2 + len(runs))}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        facts = [row.title, f"{row.metric} {row.arrow}".strip(), size(row.sized)]
        scores = [_score(row, i) for i in range(len(runs))]
        cells = [escaped(text) for text in [*facts, chance(row.first)]] + scores
        lines.append(" & ".join(cells) + r" \\")
        intervals = [_interval(row, i) for i in range(len(runs))]
        if any(intervals):
            lines.append(" & ".join(["", "", "", "", *intervals]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escaped(text: str) -> str:
    r"""Escapes the characters that LaTeX treats specially.

    Example:
        >>> print(escaped("map_seen ↑ 50 %"))
        map\_seen $\uparrow$ 50 \%
    """
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def _score(row: Row, i: int) -> str:
    metric = row.cells[i]
    if metric is None:
        return "--"
    text = escaped(number(metric.value, metric.unit))
    return rf"\textbf{{{text}}}" if i in row.best else text


def _interval(row: Row, i: int) -> str:
    metric = row.cells[i]
    text = "" if metric is None else interval(metric)
    return rf"{{\scriptsize [{escaped(text)}]}}" if text else ""
