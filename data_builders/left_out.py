"""What a build leaves out because it cannot be used: bad images, and bad rows of a table.

In: where each is and what is wrong. Out: a list, its beginning on the screen and all of it in a
file. Never: an image or a row that is left out without a line.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vlmtune.errors import UserError
from vlmtune.storage.files import remove, write_text

FILE = "left_out.txt"  # beside the shards
SHOWN = 20  # lines on the screen
LIMIT = 0.02  # default for the largest share that may be left out


class Line(NamedTuple):
    """A line of the list: where, the reason and details.

    `order` is its place in the list; lines of equal order stay as they come. `unusable` if a corpus
    may have few such lines.
    """

    where: str
    reason: str
    detail: str = ""
    order: int = 0
    unusable: bool = True

    def text(self) -> str:
        """Returns the line.

        Example:
            >>> Line("line 3 of mine.csv", "no caption", "a.jpg").text()
            'line 3 of mine.csv: no caption: a.jpg'
        """
        return ": ".join(filter(None, self[:3]))


class LeftOut:
    """Collects what is left out while the annotations are read, of `total` images or rows."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.unit = "images"
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        self.total = 0
        self.lines: list[Line] = []

    def add(self, line: Line) -> None:
        """Adds a line and counts it by its reason."""
        self.lines.append(line)
        self._counts[f"skipped: {line.reason}"] += 1


def ordered(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines in the order of the list, each once.

    Example:
        >>> [line.where for line in ordered([Line("b", "", order=2), Line("a", ""), Line("a", "")])]
        ['a', 'b']
    """
    return sorted(dict.fromkeys(lines), key=lambda line: line.order)


def report(lines: Sequence[Line]) -> None:
    """Prints the first lines to stderr."""
    for line in lines[:SHOWN]:
        print(f"left out: {line.text()}", file=sys.stderr)
    if len(lines) > SHOWN:
        more = len(lines) - SHOWN
        print(f"left out: {more} more, see {FILE} next to the shards", file=sys.stderr)


def check_fraction(lines: Sequence[Line], total: int, unit: str, allowed: float, out: Path) -> None:
    """Checks how much is unusable; if it is too much, writes the list beside `out`.

    A list that an earlier build left there is removed.

    Raises:
        UserError: It is more than the share `allowed` of `total`.
    """
    unusable = [line for line in lines if line.unusable]
    if len(unusable) <= allowed * total:
        remove(_beside(out))
        return
    raise UserError(
        f"expected at most {allowed:.0%} of {total} {unit} to be unusable, got "
        f"{len(unusable)}, {listed(unusable, lines, out)}: repair or "
        "remove them, or allow more by --max-left-out"
    )


def listed(named: Sequence[Line], lines: Sequence[Line], out: Path) -> str:
    """Writes all lines beside `out`, as the build fails, and returns what its error says of them.

    The error says the first of the lines `named`, the file, and how many have each reason.
    """
    write_text(_beside(out), _text(lines))
    reasons = Counter(line.reason for line in named)
    counted = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return f"first {named[0].text()} (all in {_beside(out)}: {counted})"


def write_lines(lines: Sequence[Line], folder: Path) -> None:
    """Writes all lines into the folder of the shards, if there are any."""
    if lines:
        (folder / FILE).write_text(_text(lines), encoding="utf-8")


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.name}.{FILE}")


def _text(lines: Sequence[Line]) -> str:
    return "\n".join([*(line.text() for line in lines), ""])
