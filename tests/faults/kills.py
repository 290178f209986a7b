"""Kills commands at random moments, repeats them, and compares what they leave with whole runs.

    python -m tests.faults.kills --kills 50 --seed 0

In: how many SIGKILLs, divided among five kinds of work, and a seed. Out: for each kind how many
killed runs end as the whole run did: the same weights to the last bit, the same bytes of files, no
file beside them. Never: a network, or a kill of another process than its own.

Half of the kills of one process come after a random time, the others before a random operation on
a file of the run. Two ranks are killed after a random time, both together or one alone; then the
other must end by itself.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.faults.work import (
    ALONE,
    CORPUS,
    EXPORT,
    KINDS,
    Work,
    arguments,
    environment,
    left,
    prepare,
    processes,
)
from tests.ranks import run_ranks
from vlmtune.cli.main import main as vlmtune

PATIENCE = 300.0
"""Seconds in which the other rank must end once one was killed."""


@dataclass
class Whole:
    """What a run that was not killed took, and the digest of each file or weight that it left."""

    seconds: float
    operations: int
    left: dict[str, str]


@dataclass
class Tally:
    """SIGKILLs that hit a living run, how many it survived, and a line for each other run."""

    kills: int = 0
    survived: int = 0
    runs: int = 0
    faults: list[str] = field(default_factory=list)


class Run:
    """A command in processes of its own, forked from this one, which has imported all of vlmtune.

    Several ranks are forked too, unless they start as a person starts them, `by_hand`. With
    `die_at` the process kills itself before the operation of this number on a file of `out`.
    """

    def __init__(
        self,
        work: Work,
        sources: Path,
        out: Path,
        die_at: int | None = None,
        by_hand: bool = False,
    ) -> None:
        self.work, self.out, self.log = work, out, out.with_suffix(".log")
        self.counted = out.with_suffix(".operations")
        words = arguments(work, sources, out)
        importlib.import_module(f"vlmtune.cli.{words[0]}")  # once, not in each fork
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=self._begin, args=(words, die_at, by_hand))
        self.process.start()

    def _begin(self, words: list[str], die_at: int | None, by_hand: bool) -> None:
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if by_hand:
            os.execve(sys.executable, [sys.executable, "-m", "vlmtune", *words], environment())
        if self.work.ranks > 1:
            meeting = self.out.with_suffix(".ranks")
            sys.exit(max(run_ranks(self.work.ranks, meeting, _as_rank, words)))
        count, folder = 0, f"{self.out}{os.sep}"

        def watch(event: str, given: tuple[Any, ...]) -> None:
            nonlocal count
            if any(isinstance(x, str | Path) and str(x).startswith(folder) for x in given):
                count += 1
                if count == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        status = vlmtune(words)
        self.counted.write_text(str(count))
        sys.exit(status)

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.process.exitcode

    def wait(self, seconds: float) -> bool:
        """Waits for its end; returns whether it came."""
        # Not by `join`, which waits without end for a process that has replaced its program.
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.status is not None

    def kill(self, rank: int | None = None) -> None:
        """Kills all processes, or one rank if it has started."""
        pid = self.process.pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            if rank is None:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(processes(pid)[rank], signal.SIGKILL)

    def ended(self) -> bool:
        """Whether its last file is there."""
        return bool(self.work.end) and any(self.out.glob(self.work.end))


def _as_rank(rank: int, words: list[str]) -> int:
    del rank  # which the environment has
    return vlmtune(words)


@contextlib.contextmanager
def started(*given: Any) -> Iterator[Run]:
    """A run that is no more when the block ends."""
    run = Run(*given)
    try:
        yield run
    finally:
        run.kill()
        run.wait(PATIENCE)


def whole(work: Work, sources: Path, out: Path) -> Whole:
    """Does the work without a kill."""
    out.mkdir()
    with started(work, sources, out) as run:
        began, end = time.monotonic(), 0.0
        while run.status is None:
            if work.ranks > 1 and not (out / "run").exists():
                began = time.monotonic()
            if not end and run.ended():
                end = time.monotonic()
            time.sleep(0.001)
        assert run.status == 0, run.log.read_text()
    counted = int(run.counted.read_text()) if run.counted.exists() else 0
    return Whole((end or time.monotonic()) - began, counted, left(work, out))


def killed(work: Work, run: Run, draw: random.Random, seconds: float) -> str:
    """Kills a run after a random time; returns how, or "" if it had ended before."""
    while work.ranks > 1 and not (run.out / "run").exists() and run.status is None:
        time.sleep(0.001)
    moment = time.monotonic() + draw.random() * seconds
    while time.monotonic() < moment:
        if run.status is not None or run.ended():
            return ""
        time.sleep(0.001)
    rank = None
    if len(processes(run.process.pid)) > 1 and work.ranks > 1:
        rank = draw.choice((None, 0, 1))
    if run.status is not None:
        return ""
    run.kill(rank)
    if run.wait(PATIENCE):
        return "all ranks" if rank is None else f"rank {rank}"
    return "hung"


def one_run(
    work: Work, sources: Path, out: Path, reference: Whole, draw: random.Random, most: int
) -> tuple[list[str], str]:
    """Kills one run once or more, at most `most` times, and lets it end.

    Returns how it was killed, and any fault.
    """
    out.mkdir()
    how: list[str] = []
    while not how or (len(how) < most and draw.random() < 0.4):
        die_at = None
        if work.ranks == 1 and draw.random() < 0.5:
            die_at = draw.randint(1, max(2, reference.operations))
        with started(work, sources, out, die_at, work.ranks > 1) as run:
            if die_at is None:
                kill = killed(work, run, draw, reference.seconds)
            else:
                run.wait(PATIENCE)
                kill = f"operation {die_at}" if run.status == -signal.SIGKILL else ""
        how += [kill] if kill else []
        if kill == "hung":
            return how, f"the other rank hung: {_last_line(run)}"
        if not how and run.status == 0:  # it was faster than the whole run
            shutil.rmtree(out)
            out.mkdir()
    with started(work, sources, out) as run:
        if not run.wait(10 * PATIENCE):
            return how, f"the repeated run hung: {_last_line(run)}"
    if run.status != 0:
        return how, f"the repeated run ended with {run.status}: {_last_line(run)}"
    now, then = left(work, out), reference.left
    other = sorted(name for name in {**now, **then} if now.get(name) != then.get(name))
    return how, f"other than in the whole run: {', '.join(other)}" if other else ""


def _last_line(run: Run) -> str:
    return (run.log.read_text(errors="replace").splitlines() or [""])[-1]


def inject(kills: int, seed: int, kinds: tuple[Work, ...] = KINDS) -> dict[str, Tally]:
    """Injects `kills` SIGKILLs into each kind of work; prints and returns what became of them."""
    torch.set_num_threads(1)
    draw, tallies = random.Random(seed), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = folder / "sources"
        sources.mkdir()
        prepare(sources)
        wholes = {CORPUS: whole(CORPUS, sources, folder / "corpus")}
        shutil.copytree(folder / "corpus/shards", sources / "shards")
        if ALONE in kinds or EXPORT in kinds:
            wholes[ALONE] = whole(ALONE, sources, folder / "alone")
            shutil.copy(folder / "alone/run/checkpoints/last.ckpt", sources)
        for number, work in enumerate(kinds):
            if work not in wholes:
                wholes[work] = whole(work, sources, folder / f"whole-{number}")
            tally = tallies[work.name] = Tally()
            while tally.kills < kills:
                out = folder / f"killed-{number}-{tally.runs}"
                left_over = kills - tally.kills
                how, fault = one_run(work, sources, out, wholes[work], draw, left_over)
                tally.runs += 1
                tally.kills += len(how)
                if fault:
                    tally.faults.append(f"killed at {', '.join(how)}: {fault}")
                else:
                    tally.survived += len(how)
                shutil.rmtree(out, ignore_errors=True)
            kept = f"{tally.survived} kills survived"
            print(f"{work.name}: {tally.kills} kills in {tally.runs} runs, {kept}", flush=True)
            print("".join(f"  {fault}\n" for fault in tally.faults), end="", flush=True)
    return tallies


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Kills commands at random moments.")
    parser.add_argument("--kills", type=int, default=50, help="how many in all (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    options = parser.parse_args()
    tallies = inject(-(-options.kills // len(KINDS)), options.seed)
    survived = sum(tally.survived for tally in tallies.values())
    kills = sum(tally.kills for tally in tallies.values())
    print(f"{survived} of {kills} kills end as the whole run does")


if __name__ == "__main__":
    main()
