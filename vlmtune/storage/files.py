"""Single files: written whole or not at all, and JSON that is read with a one-line error.

In: a path and its content. Out: the file, or the value in it. Never: a half-written file.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` and renames it to `path` when the block succeeds.

    The block writes a file or a folder there. If it fails, `path` stays as it was.

    Raises:
        UserError: The file or its folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.txt"
        ...     with write_atomically(path) as temporary:
        ...         _ = temporary.write_text("whole")
        ...     [file.name for file in Path(folder).iterdir()]
        ['a.txt']
    """
    path = Path(path)
    temporary, old = (path.with_name(f".{path.name}.{os.getpid()}.{x}") for x in ("part", "old"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            if temporary.is_dir() and path.exists():
                path.replace(old)  # a folder cannot replace one that has files
            temporary.replace(path)
        except OSError:
            if old.exists():
                old.replace(path)
            raise
        finally:
            remove(temporary)
            remove(old)
    except OSError as error:
        raise UserError(
            f"expected to write {path}, got {type(error).__name__} ({error.strerror}): "
            "free the disk or choose another folder"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically.

    Raises:
        UserError: The file or its folder cannot be written.
    """
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def remove(path: Path) -> None:
    """Removes a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_json(
    path: Path,
    expected: str,
    fix: str = "correct the path",
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Reads a JSON file.

    Args:
        path: The file.
        expected: Its content, for the error ("a JSON list of ...").
        fix: The advice, for the error.
        parse_constant: Handles NaN and infinity, as in `json.loads`.

    Raises:
        UserError: The file cannot be read or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=parse_constant)
    except (OSError, ValueError) as error:
        raise UserError(
            f"expected {expected} in {path}, got {type(error).__name__} ({error}): {fix}"
        ) from error
