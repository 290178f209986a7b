"""Finished files get their names in the data folder, unless a person's files have them.

In: finished files and the ledger. Out: files in their places. Never: a person's file overwritten,
or a new folder half full.
"""

import filecmp
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmtune.errors import UserError
from vlmtune.sources.ledger import Ledger
from vlmtune.storage.files import write_atomically, writing


def put(part: Path, path: Path, is_ours: bool) -> None:
    """Renames `part` to `path`; of the same content, a person's file and `part` stay as they are.

    `is_ours` says that vlmtune wrote a file at `path`, if there is one.

    Raises:
        UserError: A person's file at `path` has other content.
    """
    if is_ours or not path.exists():
        part.replace(path)
        return
    if not filecmp.cmp(part, path, shallow=False):
        raise UserError(
            f"expected nothing, or the file of its source, at {path}, got a file that vlmtune did "
            "not write: move it away, and run again"
        )


@contextmanager
def merged_folder(folder: Path, ledger: Ledger) -> Iterator[Path]:
    """Gives a temporary folder; its files get their names below `folder` when the block succeeds.

    What else lies in `folder` stays there.
    """
    ready = folder.with_name(f".{folder.name}.new")
    with write_atomically(ready) as temporary:
        yield temporary
    with writing(folder):
        if not folder.exists():
            ready.replace(folder)
            return
        try:
            for part in sorted(ready.rglob("*")):
                if part.is_file():
                    path = folder / part.relative_to(ready)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    put(part, path, ledger.wrote(path))
        finally:
            shutil.rmtree(ready, ignore_errors=True)
