"""`vlmtune evaluate`: measures a model on benchmarks.

In: a model and benchmarks. Out: report.json, report.md and report.html. Never: a changed model.
"""

import argparse
import os
import re
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from vlmtune.cli.option_names import naming_table_options
from vlmtune.cli.plugins import is_table, make_benchmarks, model_of
from vlmtune.cli.provenance import provenance_of
from vlmtune.errors import UserError
from vlmtune.evaluation.suite import load_all, run_suite
from vlmtune.model.model import Model
from vlmtune.model.resolving import FILES
from vlmtune.report.html import write_report
from vlmtune.report.items_file import by_benchmark, check_format, write_items
from vlmtune.report.run_report import RunReport
from vlmtune.report.screen import show
from vlmtune.report.text_only_files import save_text_only
from vlmtune.results.item_row import ItemRow
from vlmtune.storage.files import all_or_none, check_outputs


def run(options: argparse.Namespace) -> None:
    """Writes the report into `options.out`, or a new folder, and shows the numbers.

    A benchmark that cannot be run is reported as not run. Missing files are reported before the
    first image is encoded. With `options.text_only` the text-only runs are reported too.
    """
    # What can be wrong with the options is found before a model is loaded.
    check_outputs([options.items], map(Path, options.benchmarks))
    with naming_table_options(any(map(is_table, options.benchmarks))):
        benchmarks = make_benchmarks(options.benchmarks, options.overrides)
        if options.download:
            from vlmtune.sources.downloads import download_missing  # most need no network

            download_missing(benchmarks)
        for name, why in load_all(benchmarks):
            print(f"not run: {name}: {why}", file=sys.stderr)
    if options.items is not None:
        check_format(options.items)
    text_only = None
    if options.text_only is not None:
        from vlmtune.cli.text_only import TextOnly  # most evaluations show the images

        text_only = TextOnly(options.text_only)
    model = model_of(options, texts=False)
    scorer = model.scorer(options.store)
    name = options.name or default_name(model, options.model)
    out = options.out or _new_folder(name)
    out.mkdir(parents=True, exist_ok=True)  # fails now rather than after the work
    _name_replaced(out / "report.json", name)
    rows: list[ItemRow] | None = None if options.items is None else []
    suite = run_suite(benchmarks, scorer, items=rows)
    specs = {benchmark.name: benchmark.spec() for benchmark in benchmarks}
    measured = {"benchmarks": specs}
    provenance = provenance_of(model, options.model, options.pretrained, measured)
    report = RunReport(name, provenance, suite.results, not_run=suite.not_run)
    runs_without_images: list[RunReport] = []
    if text_only is not None:
        # A benchmark that was not run has no text-only numbers either.
        names = {result.benchmark for result in suite.results}
        ran = [benchmark for benchmark in benchmarks if benchmark.name in names]
        runs_without_images = text_only.runs(ran, scorer, provenance)

    runs = [report, *runs_without_images]
    items = {name: by_benchmark(rows or ())}
    # All files are of one evaluation, even if the disk is full at the last of them.
    with all_or_none():
        report.save(out / "report.json")
        if options.items is not None and rows is not None:
            write_items(options.items, rows)
        page = write_report(out, runs, items)
        # Last, as it removes files of an earlier evaluation.
        save_text_only(out, runs_without_images)
    show(runs)
    print(f"report: {page}")


def _new_folder(name: str) -> Path:
    """A folder for the report of a run, which no other evaluation has."""
    # The name may be a path or a hub id, and a folder has one part.
    letters = re.sub(r"[^\w.-]+", "-", name)
    stem = letters.strip("-.") or "report"
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs/evaluate", f"{stem}-{stamp}-{os.getpid()}")


def _name_replaced(file: Path, name: str) -> None:
    """Prints whose report is replaced, if it is of another name."""
    with suppress(UserError):  # a damaged one, or of another version
        before = RunReport.load(file).name
        if before != name:
            print(f"replaces the report of {before}: {file}", file=sys.stderr)


def default_name(model: Model, given: str) -> str:
    """The name of a run: the last part of what was typed; random weights are named.

    The last checkpoint of a run has the run's name, which is that of its folder; others have both.
    """
    path = Path(given)
    # Only a file has an ending: "lr0.01" and "llava-1.5-7b-hf" are whole names.
    name = path.stem if path.suffix in FILES else path.name
    name = name or given
    if path.suffix == ".ckpt" and path.exists():
        folder = path.resolve().parent
        if folder.name == "checkpoints":
            folder = folder.parent
        name = folder.name if name == "last" else f"{folder.name} {name}"
    return f"{name} (random weights)" if model.backbone.random_weights else name
