"""Errors as one line that says what was expected, what came and what to do."""

import argparse
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any

from vlmtune.errors import UserError

LONGEST = 600
UNKNOWN_ARGUMENT = re.compile(r"unrecognized arguments: (?:--)?([\w./+-]+)")
UNKNOWN_KEY = re.compile(r"does not accept option '([^']+)'|Key '([^']+)' is not expected")
UNKNOWN_OPTION = re.compile(r"Option '([^']+)' is not accepted")
CLASS = re.compile(r"class_path[ =]'([^']+)'")
COMMAND = re.compile(r"\b(fit|validate|test)\.(?=\w)")
KEY = re.compile(r'Parser key "([^"]+)":')
ABSENT = re.compile(r"module '([^']+)' has no attribute '([^']+)'")
# jsonargparse reads a YAML that is at fault a second time and calls that a loop.
LOOP = re.compile(r"Config file loop detected: (\S+) -> .*", re.DOTALL)
# What jsonargparse says, and how it is told; {0}, {1} are the groups.
SAID = (
    (r"arguments are required: (.+)", "expected values for {0}, got none: give a --config"),
    (r"File does not exist: '(.+?)'", "expected the file '{0}', it is not there: correct the path"),
    (
        r"Import path (\S+) does not correspond to a subclass of (\w+)",
        "expected a subclass of {1}{place}, got '{0}': name another",
    ),
    (
        r"Problem with given class_path '([^']+)': (?!Parser key)(.+?)(?: - |$)",
        "expected a class path or a YAML{place}, got '{0}' ({1}): correct it",
    ),
    (
        r"Expected an instantiatable class, but (\S+) is abstract",
        "expected the keys class_path and init_args{place}, got others: name a subclass of {0}",
    ),
    (
        r"Expected a <class '(\w+)'>.*? (?i:value): (.+?)(?: - |$)",
        "expected a value of type {0}{place}, got {1}: correct it",
    ),
)


def is_expected(error: Exception) -> bool:
    """Whether an error is one a person can cause, not a fault of ours."""
    names = {kind.__name__ for kind in type(error).__mro__}
    known = {"RecordError", "MisconfigurationException", "OutOfMemoryError"}
    return isinstance(error, UserError | OSError | argparse.ArgumentError) or bool(names & known)


def explain(error: Exception) -> str:
    """Returns the one line of an error.

    Example:
        >>> explain(FileNotFoundError(2, "No such file or directory", "a.yaml"))
        "expected the file 'a.yaml', got: No such file or directory: correct the path"
    """
    text = _one_line(str(error))
    if isinstance(error, UserError):
        return text
    if type(error).__name__ == "OutOfMemoryError":
        return f"expected enough memory, got {text}: lower the batch size or use a smaller model"
    if isinstance(error, OSError) and error.filename is not None:
        return f"expected the file {str(error.filename)!r}, got: {error.strerror}: correct the path"
    if is_expected(error):
        return text
    return f"{type(error).__name__}: {text}: a fault in vlmtune; --debug shows where"


def warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
    r"""Formats a warning for `warnings.formatwarning`.

    Example:
        >>> warning_line("the disk is nearly full", UserWarning, "a.py", 1)
        'vlmtune: warning: the disk is nearly full\n'
    """
    return f"vlmtune: warning: {_one_line(str(message))}\n"


def configuration_error(error: Exception, keys: Iterable[str]) -> UserError:
    """Turns what jsonargparse says of a config or a command line into one line with a suggestion.

    Args:
        error: What jsonargparse raised.
        keys: The keys that there are.

    Example:
        >>> error = ValueError("unrecognized arguments: --data.sed=1")
        >>> print(configuration_error(error, ["data.seed"]))
        expected a known key, got 'data.sed': did you mean 'data.seed'?
    """
    text = _one_line(_without_loop(error))
    if found := UNKNOWN_ARGUMENT.search(text) or UNKNOWN_KEY.search(text):
        key = next(group for group in found.groups() if group)
        return UserError(f"expected a known key, got {key!r}: {_suggest(key, keys, 'see --help')}")
    place = _place(KEY.findall(text), LOOP.search(str(error)))
    option, owner = UNKNOWN_OPTION.search(text), CLASS.findall(text)
    if option and owner:
        return UserError(
            f"expected an argument of {owner[-1]}{place}, got {option[1]!r}: "
            f"{_suggest(option[1], _parameters(owner[-1]), 'correct it')}"
        )
    if absent := ABSENT.search(text):
        return UserError(
            f"expected a class of {absent[1]}{place}, got {(owner or [absent[2]])[-1]!r}: "
            f"{_suggest(absent[2], _classes(absent[1]), 'correct it')}"
        )
    plain = COMMAND.sub("", text)
    for said, told in SAID:
        if found := re.search(said, plain):
            return UserError(told.format(*found.groups(), place=place))
    rest = KEY.sub("", plain).strip(" -")
    return UserError(f"expected a valid config, got an error{place}: {rest}: correct it")


def _without_loop(error: BaseException) -> str:
    """What went wrong in a YAML, in place of the loop of YAMLs that jsonargparse reports."""
    cause: BaseException | None = error
    while cause is not None and LOOP.search(str(cause)):
        cause = cause.__cause__ or cause.__context__
    return str(error) if cause is None else LOOP.sub(lambda _: str(cause), str(error))


def _place(keys: list[str], loop: re.Match[str] | None) -> str:
    """Where an error is: the innermost key, with those it is below, and the YAML."""
    place = ""
    for key in keys:
        key = COMMAND.sub("", key)
        place = key if not place or key.startswith(place) else f"{place}.{key}"
    return (f" in {place}" if place else "") + (f" of {loop[1]}" if loop else "")


def _suggest(key: str, keys: Iterable[str], otherwise: str) -> str:
    known = sorted(set(keys))
    near = difflib.get_close_matches(key, known, 1, 0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(known)}" if 0 < len(known) <= 12 else otherwise


def _parameters(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    try:
        return list(inspect.signature(getattr(importlib.import_module(module), name)).parameters)
    except (ImportError, AttributeError, ValueError, TypeError):
        return []


def _classes(module: str) -> list[str]:
    found = vars(sys.modules[module]) if module in sys.modules else {}
    return [name for name, value in found.items() if inspect.isclass(value)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
