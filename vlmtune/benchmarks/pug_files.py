"""What the PUG benchmarks share: their csv tables, and names of folders as words."""

import csv
import random
import re
from collections.abc import Sequence
from pathlib import Path

from vlmtune.errors import UserError

SITE = "https://pug.metademolab.com (CC BY-NC 4.0; not to be used to train generative models)"
# Before a capital that follows a small letter or a digit, or that begins a word after capitals.
_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Reads the given columns of a csv; further columns are left alone.

    Raises:
        UserError: The file cannot be read, lacks a column, has a short row, or has no row.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            lacking = [name for name in columns if name not in (reader.fieldnames or ())]
            if lacking:
                raise UserError(
                    f"expected the columns {', '.join(columns)} in {path}, got no "
                    f"{', '.join(lacking)}: pass the csv of the data set from {SITE}"
                )
            rows = [{name: row[name] for name in columns} for row in reader]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(
            f"expected a csv in {path}, got {type(error).__name__} ({error}): correct the path, or "
            f"get the file from {SITE}"
        ) from error
    short = next((i for i, row in enumerate(rows) if None in row.values()), None)
    if short is not None or not rows:
        came = "no row" if short is None else f"row {short} without all of them"
        raise UserError(
            f"expected rows with {', '.join(columns)} in {path}, got {came}: download it again"
        )
    return rows


def spoken(name: str) -> str:
    """A name of a folder or a factor as words: split at underscores and capitals, lower case.

    Hyphens stay, and so do the misspellings of the data ("Kangarou", "Table_Lamb").

    Example:
        >>> [spoken(name) for name in ("VillageSquare", "Jack_O_Lantern", "Chain-saw", "JellyFish")]
        ['village square', 'jack o lantern', 'chain-saw', 'jelly fish']
    """
    return " ".join(_BORDER.sub(" ", name).replace("_", " ").split()).lower()


def drawn(n: int, limit: int | None, seed: int) -> list[int]:
    """At most `limit` of the positions 0 to n - 1, drawn without replacement, in order.

    Example:
        >>> drawn(3, None, 0), drawn(1000, 3, 0)
        ([0, 1, 2], [394, 776, 864])
    """
    if limit is None or limit >= n:
        return list(range(n))
    return sorted(random.Random(seed).sample(range(n), limit))


def check_options(convention: str, limit: int | None) -> None:
    """Raises `UserError` where an argument all PUG benchmarks take is none of its values."""
    if convention not in ("strict", "reference"):
        raise UserError(
            f"expected the convention 'strict' or 'reference', got {convention!r}: choose one"
        )
    if limit is not None and limit < 1:
        raise UserError(f"expected a limit of at least 1, got {limit}: leave it out for all")
