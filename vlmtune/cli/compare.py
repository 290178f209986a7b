"""`vlmtune compare`: trains every strategy of an experiment and puts the results into one table.

In: an experiment (`compare_jobs`), and seeds. Out: a run in FOLDER/STRATEGY/seed-SEED for each,
and the table of all (`compare_table`). Never: a finished run again, or a run that another call is
running.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from filelock import Timeout

from vlmtune.cli.compare_grid import chosen_rows, with_grid
from vlmtune.cli.compare_jobs import (
    RECIPE,
    Experiment,
    Job,
    list_jobs,
    other_points,
    read_experiment,
)
from vlmtune.cli.compare_process import run_process
from vlmtune.cli.compare_table import collect, markdown, to_csv
from vlmtune.errors import UserError
from vlmtune.storage.files import all_or_none, write_text
from vlmtune.storage.folder import locked
from vlmtune.training.checkpoint_files import newest_checkpoint

Run = Callable[[Sequence[str], Path], None]
"""Runs a command of vlmtune and writes its output to a file; raises `UserError` if it fails."""


def perform(job: Job, run: Run) -> Literal["done", "ran", "taken"]:
    """Runs what is left of a job; "taken" if another call is running it."""
    try:
        with locked(job.folder / ".compare", wait=False):
            if job.done:
                return "done"
            last = newest_checkpoint(job.folder)
            # A run that failed before its first checkpoint leaves nothing to mix with another.
            has_results = last is not None or job.report.is_file()
            rebuilt = job.rebuilt
            is_other = job.begun not in (None, job.recipe)
            if has_results and (is_other or rebuilt):
                what = "command and configs" if is_other else "training data"
                raise UserError(
                    f"expected in {job.folder} a run of the same {what}, got another "
                    f"({rebuilt or RECIPE}): remove the folder or choose another --out"
                )
            write_text(job.folder / RECIPE, job.recipe)
            resume = ("--ckpt_path", str(last)) if last is not None else ()
            run((*job.words, *resume), job.folder / "log.txt")
    except Timeout:
        return "taken"
    if not job.done:
        raise UserError(f"expected {job.report} after the run, got none: see the log next to it")
    return "ran"


def run(options: argparse.Namespace, start_run: Run = run_process) -> None:
    """Trains what is left and writes the tables; a failed run does not stop the rest."""
    stated = read_experiment(options.experiment)
    experiment = with_grid(stated, options.grid)
    steps = options.steps
    out = options.out
    if out is None:
        # A shortened or extended comparison gets another folder than the experiment itself.
        grid_suffix = "-grid" if options.grid else ""
        steps_suffix = "" if steps is None else f"-{steps}-steps"
        out = Path(f"{experiment.out}{grid_suffix}{steps_suffix}")
    only = chosen_rows(stated, options.grid, options.only)
    chosen = list_jobs(experiment, out, options.seeds, only, steps)
    failed = []
    start = time.monotonic()
    for position, job in enumerate(chosen, 1):
        seconds = time.monotonic() - start
        print(f"[{seconds:4.0f} s] {position} of {len(chosen)}: {job.name}")
        try:
            outcome = perform(job, start_run)
            if outcome == "ran":  # a table after each run, so that there is always one
                _write_tables(experiment, out, steps, bool(options.grid))
        except UserError as error:
            # The others go on: one diverged training must not cost a night.
            failed.append(job.name)
            print(f"failed: {error}", file=sys.stderr)
            continue
        if outcome == "taken":
            print("another call is running it")
    if _write_tables(experiment, out, steps, bool(options.grid)):
        written = [out / f"compare.{form}" for form in ("md", "csv", "json")]
        print(written[0].read_text(encoding="utf-8"), end="")
        print(f"written: {', '.join(map(str, written))}")
    if failed:
        raise UserError(
            f"expected all runs to finish, {len(failed)} of {len(chosen)} failed ({failed[0]}): "
            "see above, mend the cause and call again"
        )


def _write_tables(experiment: Experiment, out: Path, steps: int | None, is_grid: bool) -> bool:
    """Puts all finished runs of the folder into the tables, of all calls and seeds.

    Those of a grid also have the points of earlier calls, which no config lists. Without a finished
    run of these settings there is nothing to write, and it returns False.
    """
    seeds = set()
    for folder in out.glob("*/seed-*"):
        seed = folder.name.removeprefix("seed-")
        if seed.isdecimal():
            seeds.add(int(seed))
    listed = list_jobs(experiment, out, sorted(seeds), [], steps)
    if is_grid:
        listed += other_points(listed, out, steps)
    # Another call may finish a run meanwhile and write the tables, too.
    with locked(out / "compare.json"), all_or_none():
        comparison = collect(experiment, listed)
        if not comparison["rows"]:
            return False  # a table of earlier runs stays
        text = json.dumps(comparison, indent=1)
        write_text(out / "compare.json", f"{text}\n")
        write_text(out / "compare.md", markdown(comparison))
        write_text(out / "compare.csv", to_csv(comparison))
    return True
