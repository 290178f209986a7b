"""The one error a person sees: what was expected, what came, what to do.

In: the message of a failure. Out: an error whose text is one line.
"""

import importlib
import re
import textwrap
from typing import Any, TypeVar

T = TypeVar("T")

# What torch advises where a file needs code: to run it.
RUN_CODE = re.compile(
    r"(\(1\) )?In PyTorch 2\.6.*?trusted source\.|\(2\) Alternatively.*?error message\."
    r"|Please use `torch\.serialization.*|Check the documentation of torch\.load.*",
    re.DOTALL,
)


class UserError(ValueError):
    r"""Input that vlmtune cannot use. The command line prints its one line and exits with status 2.

    Example:
        >>> str(UserError("expected a folder of shards, got a file: pass what `build` wrote"))
        'expected a folder of shards, got a file: pass what `build` wrote'
        >>> str(UserError("expected a class, got two\nlines: name a class"))
        'expected a class, got two lines: name a class'
    """

    def __init__(self, message: str) -> None:
        # What came may be a person's text of several lines.
        super().__init__(" ".join(message.splitlines()))


class ImageFileError(UserError):
    """An image file that cannot be read; who knows what it belongs to adds where to get it."""


def expect(kind: type[T], value: object, use: str) -> T:
    """Returns a value of a kind.

    Raises:
        TypeError: It is of another kind; the line says what makes the right one.

    Example:
        >>> expect(float, "0.5", "float(text)")
        Traceback (most recent call last):
        TypeError: expected float, got str: use float(text)
    """
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}: use {use}")
    return value


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, which ends in "s" unless the number is 1.

    Example:
        >>> counted(1, "image"), counted(1200, "image")
        ('1 image', '1,200 images')
    """
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def imported(module: str, use: str, fix: str) -> Any:
    """Imports a module of an optional package; a `UserError` names its `use` if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(
            f"expected the package {package} {use}, it is not installed: {fix}"
        ) from error


def reason(error: Exception) -> str:
    """Says in a few words why a file cannot be read, for "expected ..., got ...".

    Example:
        >>> reason(FileNotFoundError(2, "No such file or directory", "a.json"))
        'no such file'
        >>> reason(ValueError("row 3 has no id"))
        'ValueError (row 3 has no id)'
    """
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__} ({error})"


def one_line(error: BaseException) -> str:
    r"""The error of a library as part of a line, without its advice to run foreign code.

    Example:
        >>> text = "Load failed. In PyTorch 2.6, set it to False for a trusted source.\nGLOBAL a.b"
        >>> one_line(ValueError(text))
        'ValueError: Load failed. GLOBAL a.b'
    """
    message = RUN_CODE.sub("", str(error))
    text = textwrap.shorten(message, 300, placeholder=" …")
    return f"{type(error).__name__}: {text}".removesuffix(": ")
