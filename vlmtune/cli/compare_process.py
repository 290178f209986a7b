"""One run of `vlmtune compare` as a process, which a signal stops together with this one.

In: the words of a command, and a log file. Out: the log. Never: a process that is left running.
"""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError


def run_process(words: Sequence[str], log: Path) -> None:
    """Runs `vlmtune` in a separate process; an error has the last line it printed.

    SIGTERM and Ctrl-C stop this process too; it writes its checkpoint first.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "vlmtune", *words]
    process = None
    with log.open("a", encoding="utf-8") as file, _sigterm_as_exit():
        try:
            # A signal while the process starts would leave it running, with nobody who knows it.
            with _signals_after():
                process = subprocess.Popen(command, stdout=file, stderr=file)  # noqa: S603
            status = process.wait()
        except BaseException:
            if process is not None:
                process.terminate()
                process.wait()
            raise
    check_ended(status, log)


def check_ended(status: int | None, log: Path) -> None:
    """Raises `UserError` with the last line of a process's log unless the process ended well."""
    if status:
        text = log.read_text(encoding="utf-8", errors="replace")
        _, _, last_line = text.strip().rpartition("\n")
        raise UserError(f"expected the run to end well, got {last_line!r}: see {log}")


@contextlib.contextmanager
def _signals_after() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C that come in the block act at its end."""
    came: list[int] = []

    def note(which: int, frame: Any) -> None:
        del frame
        came.append(which)

    before = {}
    for which in (signal.SIGTERM, signal.SIGINT):
        # A signal that is ignored stays so, here and in the process.
        if signal.getsignal(which) != signal.SIG_IGN:
            before[which] = signal.signal(which, note)
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler or signal.SIG_DFL)
        for which in came:
            signal.raise_signal(which)


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Lets SIGTERM raise `SystemExit` inside."""

    def stop(number: int, frame: Any) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not set by Python
