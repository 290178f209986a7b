"""Turns an exception into one line: what was expected, what came, what to do.

In: an exception. Out: its line. Never: a traceback, which the command line shows (`--debug`).
"""

import argparse
import difflib
import errno
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from vlmtune.errors import UserError
from vlmtune.report.printable import printable

LONGEST = 600  # characters of a line; messages of libraries may be pages
EXPECTED = {"RecordError", "MisconfigurationException"}
COMPILERS = {"BackendCompilerFailed", "InductorError", "TorchDynamoException"}
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc", re.I)
OPTIMIZER = re.compile(
    r"^Invalid (learning rate|beta|epsilon|weight_decay|momentum)\b|^LBFGS doesn't support|"
    r"^`fused` and `foreach`"
)
WORKER = re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed|exited)[^.]*")
# jsonargparse writes prose. These find in it the name that is wrong and the class it belongs to; if
# it words them otherwise one day, the suggestion is missing and its message is still shown.
WRONG = re.compile(r"(?:unrecognized arguments: (?:--)?|ption '|Key '|attribute '?)([^'\s=]+)")
MODULE = re.compile(r"No module named '(\w+)'")
CLASS = re.compile(r"class_path[ =]'([\w.]+)\.(\w+)'")
ABSTRACT = re.compile(r"Expected an instantiatable class, but ([\w.]+)\.(\w+) is abstract")
KEY = re.compile(r'Parser key "([^"]+)":')
COMMAND = re.compile(r"\b(fit|validate|test)\.(?=\w)")
# Of a plug-in that may be a list, None or a path, jsonargparse also says that it is none of these.
PLUGIN = re.compile(
    r"Does not validate against any .*?"
    r"((?:Problem with|Import path|Expected a dot import|Expected an inst\w+|Option) .*) "
    r"- Expected a <class '\S+'> Given value type: .* Given value: (.*)"
)
OTHERS = re.compile(
    r"( - Expected a <class '\S+'>)+$| - Not a valid subclass of \w+ Subclass types expect one of: "
    r".*?\(implicit class_path\)"
)
# What pydantic says beside the bound that a value misses.
BOUND = re.compile(r"\d+ validation errors? for \S+ | \[type=[^]]*\] For .*? visit \S+?(?=\. |$)")
# A value of the optimizer that is also tried as a class, or in a union.
NO_CLASS = re.compile(r"Expected a dot import path string: (\S+) .*='([\w.]+)', .*?(\w+)='\1'.*")
UNION = re.compile(r"Does not validate .*? a callable class: ")
PARSED = re.compile(r"\.? Got value: Namespace\(.*")
CONTENT = re.compile(r"(?<=Unexpected config): .*")  # of a table, for example
ADVICE = {
    "'torch.optim.Optimizer'": "name its class, too, as --model.optimizer torch.optim.AdamW",
    "File does not exist": "check the path and its ending, such as .yaml",
    "Requirement 'wandb": "pip install 'vlmtune[wandb]'",
    "Unexpected config": "name a YAML with --config, and a table with --data",
    "are required": "name a config, as --config configs/experiments/own_data/mm_adapter.yaml",
    "pip install": "install it",
    "codec can't decode": "save the file as UTF-8 and set PYTHONUTF8=1",
}
# A plug-in that is written out, or the path of its class, is not the path of a YAML.
NO_YAML = re.compile(
    r"- Expected a path but (\[?\{.*?\}\]?|[\w.]+(?<!\.json|\.yaml)(?<!\.yml)) "
    r"either not accessible or invalid (- )?"
)
# jsonargparse loads a faulty YAML twice and reports a loop. The cause is the real error.
LOOP = re.compile(r"Config file loop detected: (\S+) -> .*", re.DOTALL)


def is_expected(error: Exception) -> bool:
    """Whether the user can cause this error, so that it is not a bug in vlmtune."""
    if isinstance(error, UserError | OSError | argparse.ArgumentError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return not EXPECTED.isdisjoint(names) or _known_line(error) is not None


def explain(error: Exception) -> str:
    """Returns the line of an error.

    Example:
        >>> explain(FileNotFoundError(2, "No such file or directory", "a.yaml"))
        "expected the file 'a.yaml', got: No such file or directory: correct the path"
    """
    text = _one_line(str(error))
    if isinstance(error, OSError) and error.errno in FULL:
        disk = "the disk" if error.filename is None else f"the disk for {error.filename}"
        return (
            f"expected room on {disk}, got: {error.strerror}: free the disk or write to another "
            "one; a training resumes with --ckpt-path and its last checkpoint"
        )
    if isinstance(error, FileExistsError) and Path(str(error.filename)).is_file():
        return f"expected a folder, {str(error.filename)!r} is a file: choose a folder"
    if isinstance(error, OSError) and error.filename is not None:
        return f"expected the file {str(error.filename)!r}, got: {error.strerror}: correct the path"
    if (line := _known_line(error)) is not None:
        return line
    if is_expected(error):
        return text
    from vlmtune.cli.plugin_errors import hidden_by_property, origin  # few runs fail

    error = hidden_by_property(error)
    text = _one_line(str(error))
    return f"{type(error).__name__}: {text}: {origin(error)}; rerun with --debug for the traceback"


def _known_line(error: Exception) -> str | None:
    """The line of what a plug-in, memory, a worker or an optimizer refused; None for others."""
    if not isinstance(error, UserError) and isinstance(error.__cause__, UserError):  # wrapped
        return _one_line(str(error.__cause__))
    text = _one_line(str(error))
    kinds = {kind.__name__ for kind in type(error).__mro__}
    speaks_of_memory = not text or MEMORY.search(text)
    lacks_memory = isinstance(error, MemoryError | RuntimeError) and speaks_of_memory
    if lacks_memory or "OutOfMemoryError" in kinds:
        got = text or type(error).__name__
        return f"expected enough memory, got {got}: lower the batch size or use a smaller model"
    if isinstance(error, RuntimeError) and (worker := WORKER.search(text)):
        return (
            f"expected the data workers to run on, got {worker[0].strip()}: free memory or lower "
            "data.num_workers, then resume with --ckpt-path and the last checkpoint"
        )
    if type(error).__module__.startswith("wandb."):
        return (
            f"expected a run of Weights & Biases, got: {text}: run `wandb login`, set "
            "WANDB_MODE=offline, or leave the logger out"
        )
    if isinstance(error, SyntaxError):
        return f"expected Python in {error.filename}, got: {text}: mend line {error.lineno}"
    if kinds & COMPILERS:
        return (
            f"expected a compiler for CompileTowers, got: {text}: install one, such as g++, or "
            "leave the callback out"
        )
    if isinstance(error, ValueError | RuntimeError) and OPTIMIZER.match(text):
        return f"expected a valid optimizer, got: {text}: change --model.optimizer"
    return None


def warning_line(message: Warning | str, *_: object, **__: object) -> str:
    r"""Formats a warning for `warnings.formatwarning`.

    Example:
        >>> warning_line("the disk is nearly full", UserWarning, "a.py", 1)
        'vlmtune: warning: the disk is nearly full\n'
    """
    return f"vlmtune: warning: {_one_line(str(message))}\n"


def configuration_error(error: Exception, keys: Iterable[str]) -> UserError:
    """Returns an error of jsonargparse as one line, with the nearest of `keys`.

    Example:
        >>> error = ValueError("Option 'sed' is not accepted")
        >>> print(configuration_error(error, ["seed"]))
        expected a valid config, got: Option 'sed' is not accepted: did you mean 'seed'?
    """
    from vlmtune.cli.plugin_errors import first_cause, users_line  # few configs fail

    cause = first_cause(error)
    if isinstance(cause, SyntaxError):
        return UserError(explain(cause))
    text = " ".join(_without_loop(error).split())
    # In this order: each pattern expects what the one before has left.
    # jsonargparse may leave out the class path of a plug-in.
    text = PLUGIN.sub(lambda x: x[1].replace("Import path does", f"Import path {x[2]} does"), text)
    text = KEY.sub(r"\1:", text)
    text = NO_CLASS.sub(r"\3: \2 takes no such value. Got value: \1", text)
    for unhelpful in (OTHERS, NO_YAML, BOUND, UNION, CONTENT):
        text = unhelpful.sub("", text)
    text = _one_line(text)
    text = COMMAND.sub("", text)
    advice = _advice(text, keys) or users_line(error) or "change the config"
    return UserError(f"expected a valid config, got: {PARSED.sub('', text)}: {advice}")


def _advice(text: str, keys: Iterable[str]) -> str | None:
    missing = MODULE.search(text)
    if missing and Path(f"{missing[1]}.py").is_file():
        return f"{missing[1]}.py lies here, so put PYTHONPATH=. before the command"
    if abstract := ABSTRACT.search(text):
        module, name = abstract.groups()
        plugin = getattr(importlib.import_module(module), name)
        return f"define {' and '.join(sorted(plugin.__abstractmethods__))}"
    for part, fix in ADVICE.items():
        if part in text:
            return fix
    wrong = WRONG.search(text)
    if wrong is None:
        return None
    known = [key for key in keys if not key.endswith(".help")]
    for module, name in CLASS.findall(text):
        known += _names(module, name)
    key = wrong[1]
    known = [other for other in known if other != key]  # a base's, which its class lacks
    # What stands before the first point may be misspelt, too.
    before, _, _ = key.partition(".")
    for tried in (key, before):
        near = difflib.get_close_matches(tried, known, 1)
        if near:
            return f"did you mean {near[0]!r}?"
    if key.endswith((".yaml", ".yml")):
        return "write --config before it"
    return None


def _without_loop(error: Exception) -> str:
    # The loop hides what is wrong: the first cause that is none is the real one.
    cause: BaseException | None = error
    while cause is not None and LOOP.search(str(cause)):
        cause = cause.__cause__ or cause.__context__
    return LOOP.sub(lambda loop: f"{loop[1]}: {cause}", str(error))


def _names(module: str, name: str) -> list[str]:
    """Parameters of a class and its bases, or the classes of its module if it has no such class.

    Of a module that cannot be imported, the names of its neighbours.
    """
    try:
        source = importlib.import_module(module)
        plugin = getattr(source, name, None)
    except ImportError:
        package, _, _ = module.rpartition(".")
        folders = getattr(sys.modules.get(package), "__path__", ())
        return [other.name for other in pkgutil.iter_modules(folders)]
    if plugin is None:
        # Not the values: a room of vlmtune imports each class on its first use.
        return [other for other in dir(source) if other[:1].isupper()]
    # A class without `__init__` has the signature of a base.
    bases = getattr(plugin, "__mro__", ())
    makers = [base for base in bases if "__init__" in vars(base)] or [plugin]
    signatures = map(inspect.signature, makers)
    return [key for signature in signatures for key in signature.parameters]


def _one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
