"""Every number of every run as CSV, one a line, for other programs."""

import csv
import io
from collections.abc import Sequence

from vlmtune.report.run_report import RunReport
from vlmtune.report.table import check_runs

COLUMNS = (
    "run",
    "benchmark",
    "version",
    "convention",
    "kind",
    "metric",
    "value",
    "n",
    "chance",
    "low",
    "high",
    "unit",
    "higher_is_better",
    "primary",
    "text_only",
)


def to_csv(runs: Sequence[RunReport]) -> str:
    """Writes one line for each metric of each benchmark of each run.

    Numbers are written in full, fractions as fractions; what is undefined is empty.

    Raises:
        UserError: There are no runs, or two have one name.
    """
    check_runs(runs)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        for result in run.results:
            origin = (result.benchmark, result.version, result.convention, result.kind)
            for name, m in result.metrics.items():
                numbers = (m.value, m.n, m.chance, m.low, m.high, m.unit)
                marks = (m.higher_is_better, name == result.primary, run.text_only)
                flags = [str(mark).lower() for mark in marks]
                writer.writerow([run.name, *origin, name, *numbers, *flags])
    return file.getvalue()
