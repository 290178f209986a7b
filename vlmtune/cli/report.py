"""`vlmtune report`: puts finished runs side by side in one report.

In: report.json files. Out: report.md, report.html, CSV and LaTeX. It never measures.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vlmtune.cli.text_only import FILES
from vlmtune.report.formats import to_csv, to_latex
from vlmtune.report.html import write_report
from vlmtune.report.run_report import RunReport
from vlmtune.report.screen import show
from vlmtune.storage.files import write_text


def run(options: argparse.Namespace) -> None:
    """Writes report.md and report.html of `options.runs` into `options.out`, and shows the numbers.

    Runs of the same name are called by their folders. Text-only runs beside a run come last, each
    once.
    """
    files = [path / "report.json" if path.is_dir() else path for path in options.runs]
    runs = [RunReport.load(file) for file in files]
    names = Counter(run.name for run in runs)
    runs = [
        run if names[run.name] == 1 else replace(run, name=_folder(file))
        for run, file in zip(runs, files, strict=True)
    ]
    runs += _text_only(runs, [path for path in options.runs if path.is_dir()])
    page = write_report(options.out, runs)
    if options.csv is not None:
        write_text(options.csv, to_csv(runs))
    if options.latex is not None:
        write_text(options.latex, to_latex(runs))
    show(runs)
    print(f"report: {page}")


def _text_only(runs: Sequence[RunReport], folders: Sequence[Path]) -> list[RunReport]:
    """The text-only runs of the folders; equal names with other numbers get the folder's name."""
    loaded: list[tuple[RunReport, Path]] = []
    for file in [file for folder in folders for file in sorted(folder.glob(FILES))]:
        run = RunReport.load(file)
        known = [*runs, *(other for other, _ in loaded)]
        if not any((run.name, run.results) == (other.name, other.results) for other in known):
            loaded.append((run, file))
    names = Counter(run.name for run in [*runs, *(run for run, _ in loaded)])
    return [
        run if names[run.name] == 1 else replace(run, name=f"{run.name}, {_folder(file)}")
        for run, file in loaded
    ]


def _folder(file: Path) -> str:
    return file.resolve().parent.name
