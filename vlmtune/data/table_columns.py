"""Which column of a table holds what: the columns that are given, and guesses for all others.

In: the names of columns. Out: columns by what they hold. Never: a cell.
"""

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlmtune.errors import UserError

Columns = Mapping[str, str | Sequence[str] | None]
"""Columns by what they hold; captions and negatives may have several, and None means none."""

# What a column holds -> names that are taken for it, most telling first. Captions and negatives may
# have several columns: all of the first name that a table has, also in the plural and numbered.
GUESSES: dict[str, tuple[str, ...]] = {
    "image": (
        *("image", "image_path", "filepath", "file_path", "path", "img_path", "img"),
        *("image_file", "image_name", "file_name", "filename", "file"),
    ),
    "caption": ("caption", "text", "sentence", "raw", "description", "alt_text", "title"),
    "negative": (
        *("hard_negative", "negative", "hard_negative_caption", "negative_caption"),
        *("caption_neg", "neg_caption", "false_caption", "foil"),
    ),
    "negative_image": (
        *("image_neg", "negative_image", "hard_negative_image", "neg_image", "image_negative"),
        *("filename_neg", "negative_image_path"),
    ),
    "id": ("id", "image_id", "uid", "key"),
    "split": ("split", "partition"),
    "votes": ("votes",),
    "group": (),
}
LISTS = ("caption", "negative")  # what may have several columns
ALIKE = 0.85  # "captoin" is nearly "caption"; "image_width" is not nearly "image_id"
_NONE = ("", "null", "None")  # a null of the command line arrives as a text


def checked_columns(given: Columns, names: Sequence[str], path: Path) -> dict[str, tuple[str, ...]]:
    """The given columns, each of them in the table."""
    checked: dict[str, tuple[str, ...]] = {}
    for role, value in given.items():
        # A table may have a column called "None".
        if value in _NONE and value not in names:
            value = None
        columns = (value,) if isinstance(value, str) else tuple(value or ())
        fault = _fault(role, columns, names)
        if fault is not None:
            raise UserError(f"expected a column of {path} for {role}, got {fault}")
        checked[role] = columns
    return checked


def _fault(role: str, columns: Sequence[str], names: Sequence[str]) -> str | None:
    """What came in place of the columns of a role, and what to do; None if all is well."""
    if role not in GUESSES:
        return f"{role!r}, which no table has: name one of {', '.join(GUESSES)}"
    unknown = [column for column in columns if column not in names]
    if unknown:
        close = difflib.get_close_matches(unknown[0], names, 1)
        advice = f"did you mean {close[0]!r}?" if close else f"name one of {', '.join(names)}"
        return f"{unknown[0]!r}: {advice}"
    if len(columns) > 1 and role not in LISTS:
        return f"{', '.join(columns)}: name one"
    return None


def misspelt(name: str, roles: Sequence[str]) -> str | None:
    """The name that a column nearly has, of those that are guessed for these roles."""
    if name in itertools.chain(*GUESSES.values()):  # it may be alike and yet hold something else
        return None
    guesses = itertools.chain(*(GUESSES[role] for role in roles))
    near = difflib.get_close_matches(name.lower(), guesses, 1, ALIKE)
    return near[0] if near else None


def guessed_columns(role: str, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of these names that hold something, by the first guess that fits; or none."""
    plain: dict[str, str] = {}
    for name in names:
        lower = name.strip().lower()
        plain[name] = re.sub(r"[\s\-]+", "_", lower)  # "Image Path" and "image-path" are one guess
    for guess in GUESSES[role]:
        if role not in LISTS:
            matches = [name for name in names if plain[name] == guess]
            if matches:
                return (matches[0],)
            continue
        # A table has an unnumbered column in preference to numbered ones.
        for form in (f"{guess}s?", rf"{guess}s?_?\d+"):
            matches = [name for name in names if re.fullmatch(form, plain[name])]
            if matches:
                return tuple(matches)
    return ()
