"""Tables in Markdown that no template writes.

In: texts of cells. Out: lines. Never: a cell that a bar in its text divides.
"""

from collections.abc import Sequence


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Writes the lines of a Markdown table, numbers to the right; none without rows.

    Example:
        >>> markdown_table(["run", "score"], [["a", "50 %"]])
        ['| run | score |', '| --- | ---: |', '| a | 50 % |']
    """
    if not rows:
        return []
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    lines = []
    for cells in (heads, rule, *rows):
        escaped = [cell.replace("|", "\\|") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return lines
