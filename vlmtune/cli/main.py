"""Runs a command line; imports nothing heavy before the command, so `--help` answers at once.

In: the words of a command line. Out: an exit status. Never: a traceback without `--debug`.
"""

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from typing_extensions import override

from vlmtune.cli.commands import TRAINING, TRAINING_HELP, command_parser, sentence
from vlmtune.cli.explain import explain, is_expected, warning_line
from vlmtune.cli.option_names import renamed_option, table_options
from vlmtune.cli.streams import sturdy_streams
from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.report.printable import printable


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit status: 0, 2 for an error of the user, 130 for Ctrl-C.

    `argv` has no program name; by default it is the process's.

    Example:
        >>> main(["report", "nowhere", "--out", "nowhere"])
        2
    """
    given = sys.argv[1:] if argv is None else argv
    debug = "--debug" in given
    arguments = [argument for argument in given if argument != "--debug"]
    try:
        with plain_log():
            return run_command(arguments)
    except KeyboardInterrupt:
        print("vlmtune: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"vlmtune: error: {explain(error)}", file=sys.stderr)
        return 2 if is_expected(error) else 1


def entry() -> None:
    """The `vlmtune` program."""
    # Threads of OpenMP sleep while they wait for each other, in ranks and data workers too. By
    # default they spin, on the core that a thread they wait for needs where cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.meta_path.insert(0, TimmWithoutWandb())
    sturdy_streams()
    # A shell's job in the background ignores Ctrl-C.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, end_at_once)
    sys.exit(main())


def end_at_once(*_: Any) -> None:
    """Ends the process at Ctrl-C during imports, which may swallow an exception."""
    os.write(2, b"vlmtune: interrupted\n")
    os._exit(130)


def run_command(arguments: list[str]) -> int:
    """Runs a command; unlike `main`, it lets errors through."""
    # Words with dashes or underscores mean the same, on every command.
    words = [renamed_option(_located(argument), "_", "-") for argument in arguments]
    command, *rest = words or [""]
    wants_help = "-h" in rest or "--help" in rest
    if command in TRAINING:
        return _train(command, rest, wants_help)
    if command == "build" and wants_help and not rest[0].startswith("-"):
        _command_module("build").show_help(rest[0])
        return 0
    of_table: list[str] = []
    if command in ("evaluate", "leaderboard", "export"):
        of_table, words = table_options(words)
    options, unknown = command_parser().parse_known_args(words)
    if of_table:
        from vlmtune.cli.plugins import is_table  # few commands have a table

        # Without a table its options are unknown, as those of `fit` are.
        if not any(map(is_table, options.benchmarks or ())):
            unknown = [option.replace("--", "--table.", 1) for option in of_table]
    if unknown and options.command != "build":
        raise UserError(
            f"expected a known argument, got {unknown[0]!r}: see `vlmtune {options.command} --help`"
        )
    options.overrides = of_table or unknown
    _command_module(options.command).run(options)
    return 0


def _train(command: str, words: list[str], wants_help: bool) -> int:
    if wants_help or not words:
        print(TRAINING_HELP.format(command=command, summary=sentence(TRAINING[command])))
        return 0 if words else 2
    # Lightning's own help lists every key, which a newcomer should not meet first.
    names = {"--all-help": "--help"}
    shown = [names.get(word, word) for word in words]
    keys = [renamed_option(word, "-", "_") for word in shown]
    _command_module("fit").run(command, keys)
    return 0


def _command_module(name: str) -> Any:
    """Imports a command while the garbage collector is off.

    It imports a million objects and no garbage; to search them again and again takes a second.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(f"vlmtune.cli.{name}")
    finally:
        if was_on:
            gc.enable()
        if signal.getsignal(signal.SIGINT) is end_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _located(word: str) -> str:
    """Returns a word of the command line; a config that comes with vlmtune gets its full path."""
    option, equals, value = word.rpartition("=")
    if value.startswith("configs/") and not Path(value).exists():
        value = find_path(value) or value
    return f"{option}{equals}{value}"


class TimmWithoutWandb(MetaPathFinder):
    """Says that wandb is not installed while timm's summaries are imported, and at no other time.

    They import it wherever it is installed, which takes a second, and no command writes them.
    """

    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        summary = sys.modules.get("timm.utils.summary")
        importing = getattr(getattr(summary, "__spec__", None), "_initializing", False)
        if fullname == "wandb" and importing:
            raise ModuleNotFoundError("timm's summaries do without wandb", name=fullname)


class _Plain(logging.Formatter):
    """Lines without control characters: a caption may have some."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Screen(logging.StreamHandler[Any]):
    """Writes to the present stderr: while a bar is live, rich's, which prints lines above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    @override
    def stream(self) -> Any:
        return sys.stderr


@contextlib.contextmanager
def plain_log() -> Iterator[None]:
    """Shows the log and warnings as plain lines on stderr while a command runs."""
    log = logging.getLogger("vlmtune")
    level = log.level
    form = warnings.formatwarning
    handler = _Screen()
    handler.setFormatter(_Plain("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    warnings.formatwarning = warning_line
    try:
        with warnings.catch_warnings():
            yield
    finally:
        warnings.formatwarning = form
        log.setLevel(level)
        log.removeHandler(handler)
