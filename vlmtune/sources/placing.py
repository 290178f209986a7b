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
    """Renames `part` to `path`, unless a person's file there has the same content: then both stay.

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

    Files that vlmtune wrote there before and that are not among them are removed; what a person
    has there stays.
    """
    target = folder.resolve()  # it may be a link to another disk
    ready = target.with_name(f".{folder.name}.new")
    with write_atomically(ready) as temporary:
        yield temporary
    with writing(folder):
        files = filter(Path.is_file, sorted(ready.rglob("*")))
        names = [file.relative_to(ready) for file in files]
        for name in names:
            if not (folder / name).exists():
                ledger.will_write(folder / name)
        if not target.exists():
            ready.replace(target)
            return
        try:
            for name in names:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                put(ready / name, path, ledger.wrote(path))
            kept = {folder / name for name in names}
            for path in sorted(folder.rglob("*")):
                if path.is_file() and path not in kept and ledger.wrote(path):
                    path.unlink()
        finally:
            shutil.rmtree(ready, ignore_errors=True)
