"""How a benchmark's numbers go with another's over models, as a table.

In: runs. Out: Markdown. Never: a run without images, or one that lacks a number.
Source: Bordes et al. 2023, PUG, appendix C.3 and table 10: ImageNet accuracy against the accuracy
of each factor of PUG: ImageNet, over models.
"""

from collections.abc import Sequence

from vlmtune.errors import UserError
from vlmtune.metrics.correlation import Correlation, pearson
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import p_value, rows

NOTE = (
    "Pearson's r over runs. p is that of no correlation, for independent models; it is not "
    "corrected for the number of rows."
)


def correlations(
    runs: Sequence[RunReport], of: str = "zero_shot", benchmark: str = "pug_imagenet"
) -> dict[str, Correlation]:
    """The correlation of the primary metric of `of` with each metric of `benchmark`, over runs.

    Metrics count where the numbers of items agree. A run without one of the two numbers is left out
    of that row; rows of fewer than three runs are left out.

    Args:
        runs: The runs of the models; text-only ones are left out.
        of: Name of the benchmark for the accuracy that is common to all rows.
        benchmark: Name of the benchmark whose metrics are the rows.

    Raises:
        UserError: No metric has three runs with both numbers.
    """
    seeing = [run for run in runs if not run.text_only]
    every = rows(seeing)
    common = next((row for row in every if row.benchmark == of and row.primary), None)
    out = {}
    for row in every if common else ():
        if row.benchmark != benchmark or row.first.unit == "count":
            continue
        both = zip(common.cells if common else (), row.cells, strict=True)
        pairs = [(x.value, y.value) for x, y in both if x is not None and y is not None]
        if len(pairs) > 2 and (row.metric not in out or len(pairs) > out[row.metric].n):
            out[row.metric] = pearson(*zip(*pairs, strict=True))
    if not out:
        raise UserError(
            f"expected three runs or more with {of} and {benchmark}, got fewer of {len(seeing)} "
            "runs: evaluate both on more models, or name other benchmarks"
        )
    return out


def correlation_table(
    runs: Sequence[RunReport], of: str = "zero_shot", benchmark: str = "pug_imagenet"
) -> str:
    """The same as a Markdown table: PUG's table 10.

    To write it for three reports: `correlation_table([RunReport.load(folder / "report.json") for
    folder in folders])`.
    """
    lines = [f"| {benchmark} with {of} | runs | r | p |", "| --- | ---: | ---: | ---: |"]
    for metric, correlation in correlations(runs, of, benchmark).items():
        r = "–" if correlation.r is None else f"{round(correlation.r, 3) + 0.0:+.3f}"  # no -0.000
        p = "–" if correlation.p is None else p_value(correlation.p)
        lines.append(f"| {metric} | {correlation.n} | {r} | {p} |")
    return "\n".join([*lines, "", NOTE, ""])
