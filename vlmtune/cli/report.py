"""`vlmtune report`: several runs side by side."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vlmtune.cli.tables import show
from vlmtune.cli.text_only import FILES
from vlmtune.report.formats import to_csv, to_latex
from vlmtune.report.html import write_report
from vlmtune.report.run_report import RunReport
from vlmtune.storage.files import write_text


def run(options: argparse.Namespace) -> None:
    """Writes report.md and report.html of `options.runs` into `options.out`, and shows the numbers.

    Runs of one name go by the names of their folders. Blind runs that lie beside a run come last,
    each once.

    Raises:
        UserError: A report cannot be read, two runs have one name and one folder name, or a file
            cannot be written.
    """
    files = [path / "report.json" if path.is_dir() else path for path in options.runs]
    runs = [RunReport.load(file) for file in files]
    names = Counter(run.name for run in runs)
    runs = [
        run if names[run.name] == 1 else replace(run, name=_folder(file))
        for run, file in zip(runs, files, strict=True)
    ]
    runs += _blind(runs, [path for path in options.runs if path.is_dir()])
    page = write_report(options.out, runs)
    if options.csv is not None:
        write_text(options.csv, to_csv(runs))
    if options.latex is not None:
        write_text(options.latex, to_latex(runs))
    show(runs)
    print(f"report: {page}")


def _blind(runs: Sequence[RunReport], folders: Sequence[Path]) -> list[RunReport]:
    """The blind runs of the folders; those of one name and other numbers also name their folder."""
    found: list[tuple[RunReport, Path]] = []
    for file in [file for folder in folders for file in sorted(folder.glob(FILES))]:
        one = RunReport.load(file)
        known = [*runs, *(run for run, _ in found)]
        if not any((run.name, run.results) == (one.name, one.results) for run in known):
            found.append((one, file))
    names = Counter(run.name for run in [*runs, *(run for run, _ in found)])
    return [
        run if names[run.name] == 1 else replace(run, name=f"{run.name}, {_folder(file)}")
        for run, file in found
    ]


def _folder(file: Path) -> str:
    return file.resolve().parent.name
