"""The files of text-only runs, which lie beside the report of the evaluation that they belong to.

In: the runs of an evaluation. Out: their files. Never: files of an earlier evaluation left there.
"""

from collections.abc import Sequence
from pathlib import Path

from vlmtune.report.run_report import RunReport
from vlmtune.storage.files import all_or_none

PATTERN = "text-only-*.json"


def text_only_files(folder: Path) -> list[Path]:
    """Returns the files of the text-only runs in the folder of a report."""
    return sorted(folder.glob(PATTERN))


def save_text_only(folder: Path, runs: Sequence[RunReport]) -> None:
    """Writes the runs next to their report, then removes others of an earlier evaluation."""
    written = set()
    with all_or_none():
        for run in runs:
            _, _, kind = run.name.partition("(")  # "text-only (n-gram)"
            stem = kind.rstrip(")").replace(" ", "-")
            file = folder / PATTERN.replace("*", stem)
            run.save(file)
            written.add(file)
    for file in text_only_files(folder):
        if file not in written:
            file.unlink()
