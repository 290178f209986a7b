"""`vlmtune report`: several runs side by side."""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from vlmtune.commands.tables import show
from vlmtune.report.results import RunReport
from vlmtune.report.write import write_report


def run(options: argparse.Namespace) -> None:
    """Writes report.md and report.html of `options.runs` into `options.out`, and shows the numbers.

    Runs of one name go by the names of their folders.

    Raises:
        UserError: A report cannot be read, or two runs have one name and one folder name.
    """
    files = [path / "report.json" if path.is_dir() else path for path in options.runs]
    runs = [RunReport.load(file) for file in files]
    names = Counter(run.name for run in runs)
    runs = [
        run if names[run.name] == 1 else replace(run, name=_folder(file))
        for run, file in zip(runs, files, strict=True)
    ]
    page = write_report(options.out, runs)
    show(runs)
    print(f"report: {page}")


def _folder(file: Path) -> str:
    return file.resolve().parent.name
