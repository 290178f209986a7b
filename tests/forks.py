"""Commands in processes of their own, forked from this one, which has imported vlmtune.

A new interpreter takes seconds to import it; a fork takes milliseconds.
"""

import importlib
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from vlmtune.cli.main import main


def forked(function: Callable[..., Any], *arguments: Any, log: Path) -> ForkProcess:
    """Starts `function(*arguments)`, whose output goes to `log`; its result is the exit status."""
    made = multiprocessing.get_context("fork").Process(
        target=_begin, args=(function, arguments, log)
    )
    with warnings.catch_warnings():  # Python 3.12 warns of threads, which hold no lock here
        warnings.simplefilter("ignore", DeprecationWarning)
        made.start()
    return made


def command(*words: str, log: Path) -> ForkProcess:
    """Starts `vlmtune` with these words."""
    importlib.import_module(f"vlmtune.cli.{words[0]}")  # once, not in each fork
    return forked(main, list(words), log=log)


def status(process: ForkProcess, seconds: float = 300.0) -> int | None:
    """Waits for the end of a process; returns its status, negative for a signal."""
    process.join(seconds)
    return process.exitcode


def _begin(function: Callable[..., Any], arguments: tuple[Any, ...], log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(file), "w", buffering=1) for _ in range(2))
    sys.argv = ["vlmtune"]
    sys.exit(function(*arguments))
