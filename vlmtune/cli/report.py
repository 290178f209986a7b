"""`vlmtune report`: puts finished runs side by side in one report.

In: report.json files, and items of other tools. Out: report.md, report.html, CSV, LaTeX and the
result files of mteb. Never: a measurement.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError
from vlmtune.report.formats import write_formats
from vlmtune.report.html import write_report
from vlmtune.report.items_file import Items, is_items_file, items_beside, items_of, read_items
from vlmtune.report.merging import merged, same_model
from vlmtune.report.run_report import RunReport, distinct_folder
from vlmtune.report.screen import show
from vlmtune.report.seeds import seeds_of
from vlmtune.report.text_only_files import text_only_files
from vlmtune.storage.files import all_or_none, check_outputs


def run(options: argparse.Namespace) -> None:
    """Writes report.md and report.html of `options.runs` into `options.out`, and shows the numbers.

    An evaluation and a probe of one model are one column, and so are runs of the same name whose
    seeds differ; other runs of the same name are called by their folders.
    Text-only runs beside a run come last, each once.
    """
    if len(options.runs) == 1 and is_sweep(options.runs[0]):
        from vlmtune.cli import report_trials  # loads models, to export one

        report_trials.run(options)
        return
    folders = []
    files = []
    for path in options.runs:
        if path.is_dir():
            folders.append(path)
            files.append(path / "report.json")
        else:
            files.append(path)
    check_outputs([options.csv, options.latex], _inputs(files))
    read, read_rows = _loaded(files)
    # Only now, as a path without a report is not another run.
    if options.metric is not None or options.export is not None:
        raise UserError(
            "expected the folder of one sweep with --metric or --export, got other runs: leave "
            "these options out"
        )
    groups = same_model(read)

    # An evaluation and a probe of one model become one run, with the items of both.
    loaded = []
    rows = []
    first_files = []
    for group in groups:
        of_model = [read[i] for i in group]
        items: Items = {}
        for i in group:
            items |= read_rows[i]
        loaded.append(merged(of_model))
        rows.append(items)
        first_files.append(files[group[0]])
    runs = list(loaded)
    if len({run.name for run in runs}) < len(runs):
        from vlmtune.cli.report_recipes import by_recipe  # most runs have names of their own

        runs = by_recipe(loaded, first_files)
    shown = _items(runs, loaded, rows)
    runs += _text_only(runs, folders)
    with all_or_none():
        page = write_report(options.out, runs, shown)
        write_formats(runs, options.csv, options.latex, options.mteb)
    show(runs)
    print(f"report: {page}")


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds runs in its subfolders, and none itself."""
    if (folder / "report.json").exists():
        return False
    from vlmtune.report.trials import trial_files  # most reports have no plots of trials

    return bool(trial_files(folder))


def _inputs(files: Sequence[Path]) -> list[Path]:
    """The files of runs, and what is read beside them."""
    inputs = list(files)
    for file in files:
        if is_items_file(file):
            continue
        items = items_beside(file)
        if items is not None:
            inputs.append(items)
        inputs += text_only_files(file.parent)
    return inputs


def _loaded(files: Sequence[Path]) -> tuple[list[RunReport], list[Items]]:
    """The runs and the items of each; those of other tools are read last, to be compared."""
    loaded: dict[Path, RunReport] = {}
    rows: dict[Path, Items] = {}
    shared: dict[Any, Any] = {}
    for file in files:
        if not is_items_file(file):
            loaded[file] = RunReport.load(file)
            rows[file] = items_of(file, loaded[file].results, shared)
    # The items of another tool are compared with those of the runs, which must be known by then.
    for file in files:
        if file in loaded:
            continue
        from vlmtune.report.items_run import run_of_items  # few reports have runs of other tools

        others = [(run, rows[other]) for other, run in loaded.items()]
        run, items, apart = run_of_items(file, read_items(file), others)
        if apart:
            print(
                f"vlmtune: warning: {file} has other items of {', '.join(apart)} than the other "
                "runs; these numbers are not compared",
                file=sys.stderr,
            )
        loaded[file] = run
        rows[file] = items
    runs_in_order = [loaded[file] for file in files]
    rows_in_order = [rows[file] for file in files]
    return runs_in_order, rows_in_order


def _items(
    runs: Sequence[RunReport], loaded: Sequence[RunReport], rows: Sequence[Items]
) -> dict[str, Items]:
    """The items by the run's name here; of several seeds, the first's."""
    out = {}
    for run in runs:
        first_seed = seeds_of(run)[0]
        for other, items in zip(loaded, rows, strict=True):
            # A renamed run is a copy; its results are the same object.
            is_same = other.results is first_seed.results
            if is_same and items:
                out.setdefault(run.name, items)
    return out


def _text_only(runs: Sequence[RunReport], folders: Sequence[Path]) -> list[RunReport]:
    """The text-only runs of the folders; equal names with other numbers get the folder's name."""
    loaded: list[tuple[RunReport, Path]] = []
    known = [(run.name, run.results) for run in runs]
    for beside in folders:
        for file in text_only_files(beside):
            run = RunReport.load(file)
            if (run.name, run.results) not in known:
                known.append((run.name, run.results))
                loaded.append((run, file))
    names = Counter(name for name, _ in known)
    out = []
    for run, file in loaded:
        if names[run.name] > 1:
            of_same = [path for one, path in loaded if one.name == run.name]
            folder = distinct_folder(file, of_same)
            run = replace(run, name=f"{run.name}, {folder}")
        out.append(run)
    return out
