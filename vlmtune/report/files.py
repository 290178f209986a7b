"""Files that are whole or not there."""

import os
import tempfile
from pathlib import Path

from vlmtune.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text to a temporary name in the same folder, then renames it.

    Raises:
        UserError: The folder or the file cannot be written; a file that was there is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            Path(name).chmod(0o644)  # mkstemp makes it readable by its owner only
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(
            f"expected to write {path}, got {type(error).__name__} ({error.strerror}): "
            "choose a folder that can be written"
        ) from error
