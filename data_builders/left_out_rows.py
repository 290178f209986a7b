"""The bad rows of a table, which a build leaves out.

In: where each row is and what is wrong. Out: a list, its beginning on the screen and all of it in a
file. Never: a row that is left out without a line.
"""

import sys
from collections import Counter
from pathlib import Path

from data_builders.shard_builder import image_extension
from vlmtune.data.images import open_image
from vlmtune.data.schema import RecordError
from vlmtune.errors import UserError

FILE = "left_out.txt"  # beside the shards
SHOWN = 20  # rows on the screen


class LeftOutRows:
    """Collects the rows that are left out, in the order of the table.

    Attributes:
        total: Rows of the table so far.
        counts: Rows that are left out, by the reason.

    Example:
        >>> rows = LeftOutRows()
        >>> rows.add("line 3 of mine.csv", "no caption", "a.jpg")
        >>> rows.lines
        ['line 3 of mine.csv: no caption: a.jpg']
    """

    def __init__(self) -> None:
        self.total = 0
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self._unusable: list[str] = []

    def add(self, where: str, reason: str, detail: str, unusable: bool = False) -> None:
        """Adds a row; `unusable` if a table may have few such rows."""
        self.lines.append(f"{where}: {reason}: {detail}")
        self.counts[reason] += 1
        self._unusable += self.lines[-1:] if unusable else []

    def unreadable(self, where: str, wrong: str) -> None:
        """Adds and counts a row whose cells tell nothing."""
        self.total += 1
        self.add(where, "unreadable row", wrong, unusable=True)

    def report(self, allowed: float) -> None:
        """Prints the first rows to stderr.

        Raises:
            UserError: More than the fraction `allowed` of all rows is unusable.
        """
        more = len(self.lines) - SHOWN
        for line in self.lines[:SHOWN]:
            print(f"left out: {line}", file=sys.stderr)
        if more > 0:
            print(f"left out: {more} more, see {FILE} beside the shards", file=sys.stderr)
        if len(self._unusable) > allowed * self.total:
            raise UserError(
                f"expected at most {allowed:.0%} of {self.total} rows to be unusable, got "
                f"{len(self._unusable)}, first {self._unusable[0]}: correct the table, or allow "
                "more by `missing`"
            )

    def write(self, folder: Path) -> None:
        """Writes all rows into the folder of the shards, a line each, if there are any."""
        if self.lines:
            (folder / FILE).write_text("\n".join([*self.lines, ""]), encoding="utf-8")


def image_fault(content: bytes) -> str | None:
    """Returns why an encoded image cannot be trained on; None if it can. It is decoded once.

    Example:
        >>> image_fault(b"GIF89a")
        'not a JPEG, PNG or WebP'
    """
    if image_extension(content) is None:
        return "not a JPEG, PNG or WebP"
    try:
        open_image(content)
    except RecordError as error:
        return str(error).removeprefix("image refused: ")
    return None
