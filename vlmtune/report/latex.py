r"""The primary metrics as a LaTeX table, for a paper."""

from collections.abc import Sequence

from vlmtune.report.run_report import RunReport
from vlmtune.report.table import Row, chance, check_runs, interval, number, sections

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def to_latex(runs: Sequence[RunReport]) -> str:
    """Writes a `tabular` in the style of booktabs: benchmarks as rows, runs as columns, best bold.

    Under each number stands its 95 % interval.

    Raises:
        UserError: There are no runs, or two have one name.
    """
    check_runs(runs)
    rows = [row for part in sections(runs) for row in part.primary]
    heads = ["Benchmark", "Metric", "$n$", "Chance", *[escaped(run.name) for run in runs]]
    lines = [
        r"% Needs \usepackage{booktabs}. In brackets 95 % intervals.",
        rf"\begin{{tabular}}{{ll{'r' * (2 + len(runs))}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        facts = [row.title, f"{row.metric} {row.arrow}".strip(), str(row.first.n)]
        scores = [_score(row, i) for i in range(len(runs))]
        cells = [escaped(text) for text in [*facts, chance(row.first)]] + scores
        lines.append(" & ".join(cells) + r" \\")
        spans = [_span(row, i) for i in range(len(runs))]
        if any(spans):
            lines.append(" & ".join(["", "", "", "", *spans]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is.

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


def _span(row: Row, i: int) -> str:
    metric = row.cells[i]
    span = "" if metric is None else interval(metric)
    return rf"{{\scriptsize [{escaped(span)}]}}" if span else ""
