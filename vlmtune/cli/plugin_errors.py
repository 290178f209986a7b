"""Finds the user's plug-in that an error comes from.

In: an exception that is no `UserError`. Out: words that name a line or a class, with its file.
Never: a verdict; a plug-in that took part may be right.
"""

import inspect
import sysconfig
import traceback
from pathlib import Path

from torch import nn

from vlmtune.config import Configured

OURS = ("vlmtune", "data_builders")


def origin(error: Exception) -> str:
    """Says which line of a user's file failed, or which plug-ins took part; else it is our bug."""
    if line := users_line(error):
        return line
    # What a plug-in returns, or lacks, fails in a line of vlmtune.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        if plugins := _plugins(frame.f_locals.get("self")):
            return f"check {' and '.join(plugins)}"
    return "this is a bug in vlmtune"


def users_line(error: BaseException) -> str | None:
    """Says which line of a user's file the first cause of an error passed through last."""
    cause = first_cause(error)
    root = Path(__file__).parents[2]
    ours = [str(root / package) for package in OURS]
    libraries = (*ours, *sysconfig.get_paths().values(), "<")
    for frame in reversed(traceback.extract_tb(cause.__traceback__)):
        if not frame.filename.startswith(libraries):
            return f"it comes from line {frame.lineno} of {frame.filename}"
    return None


def first_cause(error: BaseException) -> BaseException:
    """The error that all others were raised from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def hidden_by_property(error: Exception) -> Exception:
    """The error in a property of a plug-in, of which torch says only that there is no property."""
    if not (isinstance(error, AttributeError) and isinstance(error.obj, Configured)):
        return error
    lacking = inspect.getattr_static(error.obj, str(error.name), None)
    compute = getattr(lacking, "fget", None) or getattr(lacking, "func", None)
    if compute is None:
        return error
    try:
        compute(error.obj)
    except Exception as cause:
        return cause
    return error


def _plugins(owner: object) -> list[str]:
    """The user's plug-ins among an object and its parts, each with its file."""
    held = getattr(owner, "__dict__", {})
    parts = [owner, *held.values()]
    if isinstance(owner, nn.Module) and "_modules" in held:  # it may be half made
        parts += owner.modules()
    kinds = {type(part): None for part in parts if isinstance(part, Configured)}
    foreign = [kind for kind in kinds if kind.__module__.partition(".")[0] not in OURS]
    return [f"{kind.__name__} in {inspect.getfile(kind)}" for kind in foreign]
