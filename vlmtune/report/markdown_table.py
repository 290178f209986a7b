"""Lines of tables in Markdown.

In: texts of cells. Out: lines. Never: a cell that a bar or a tag in its text breaks.
"""

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

TAG = re.compile(r"<(?=[A-Za-z/!?])")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    r"""Writes the lines of a table, numbers to the right; none without rows.

    Example:
        >>> print(*markdown_table(["run", "score"], [["a|b", "50 %"]]), sep="\n")
        | run | score |
        | --- | ---: |
        | a\|b | 50 % |
    """
    if not rows:
        return []
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return [line(cells) for cells in (heads, rule, *rows)]


def line(cells: Sequence[str]) -> Markup:
    """A line of a table."""
    return Markup("| " + " | ".join(map(cell_text, cells)) + " |")  # noqa: S704


def cell_text(value: Any) -> str:
    """One line without column borders and HTML: a tag in a caption stays text."""
    if isinstance(value, Markup):  # a whole line of a table
        return value
    one_line = " ".join(str(value).split())
    without_tags = TAG.sub("&lt;", one_line)
    return without_tags.replace("|", "\\|")
