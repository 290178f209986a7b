"""What the classes of a benchmark with a folder for each class are called."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmtune.benchmarks.base import Benchmark, files_from, read_json
from vlmtune.errors import UserError


def class_names(path: Path | None, folders: Sequence[str], of: Benchmark) -> tuple[str, ...]:
    """The names of the classes, in the order of the folders, no two alike.

    Args:
        path: JSON file with a list in that order or an object `{folder: name}`; None takes the
            folders' names with blanks for underscores.
        folders: The folders that are there.
        of: The benchmark, for errors.

    Raises:
        UserError: The file is not that, a class has no folder or a folder no name, or two have one
            name.
    """
    names: Any = [folder.replace("_", " ") for folder in folders]
    if path is not None:
        names = _read(path, folders, of)
    folder_of: dict[str, str] = {}
    for folder, name in zip(folders, names, strict=True):
        named = isinstance(name, str) and bool(name.strip())
        if not named or name in folder_of:
            came = f"{name!r} for {folder!r}"
            came += f" and {folder_of[name]!r}" if named else ""
            raise UserError(
                f"expected a name of its own for each class of {of.name}, got {came}: "
                f"correct {path or 'the folders, or pass `classes`'}"
            )
        folder_of[name] = folder
    return tuple(folder_of)


def _read(path: Path, folders: Sequence[str], of: Benchmark) -> list[Any]:
    """One entry for each folder; a class without a folder would be a candidate less."""
    wanted = f"a JSON list of {len(folders)} names, or an object {{folder: name}},"
    names = read_json(path, wanted)
    if isinstance(names, dict):
        if lost := sorted(set(names) - set(folders)):
            raise UserError(
                f"expected a folder for each class of {path}, {len(lost)} have none, first "
                f"{lost[0]!r}: {files_from(of)}, or take the names out"
            )
        return [names.get(folder) for folder in folders]
    if not isinstance(names, list) or len(names) != len(folders):
        came = f"{len(names)} names" if isinstance(names, list) else "another layout"
        raise UserError(
            f"expected {wanted} in {path}, got {came}: correct it, or get all folders from "
            f"{of.source}"
        )
    return names
