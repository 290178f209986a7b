"""The items of benchmarks in Weights & Biases: all in one table, those that changed with pictures.

In: the items as they were scored before and after training. Out: rows for two tables.
Never: a score that no evaluation gave.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from vlmtune.report.flips import EQUAL
from vlmtune.report.media import strip
from vlmtune.results.item_row import ItemRow

ITEMS = ("benchmark", "item", "captions", "scores", "before", "after")  # columns
CHANGED = ("images", *ITEMS)  # columns for items whose outcome changed
MOST_ITEMS = 10_000  # rows that a table of W&B shows
MOST_CHANGED = 24  # of a benchmark, as each row has pictures


def item_table(before: Sequence[ItemRow], after: Sequence[ItemRow]) -> list[list[Any]]:
    """One row of `ITEMS` for each item: its captions, its scores, and its outcomes.

    Example:
        >>> row = ItemRow("cola/0", "cola", 1.0, captions=("a", "b"), scores=((0.5, None),))
        >>> item_table([], [row])
        [['cola', 'cola/0', 'a | b', '0.5 -', None, 1.0]]
    """
    earlier = {row.id: row.outcome for row in before}
    return [_cells(row, earlier.get(row.id)) for row in after[:MOST_ITEMS]]


def changed_table(before: Sequence[ItemRow], after: Sequence[ItemRow], picture: Any) -> list[Any]:
    """One row of `CHANGED` for the first items of each benchmark whose outcome changed.

    `picture` turns the images of an item, side by side, into a cell, as `wandb.Image` does. An item
    whose images cannot be read has none.
    """
    earlier = {row.id: row.outcome for row in before}
    shown: Counter[str] = Counter()
    table = []
    for row in after:
        outcome = earlier.get(row.id)
        if outcome is None or abs(row.outcome - outcome) <= EQUAL:
            continue
        if shown[row.benchmark] == MOST_CHANGED:
            continue
        shown[row.benchmark] += 1
        images = strip(row.images)
        cell = None if images is None else picture(images)
        table.append([cell, *_cells(row, outcome)])
    return table


def _cells(row: ItemRow, earlier_outcome: float | None) -> list[Any]:
    """The cells of an item under `ITEMS`."""
    captions = " | ".join(row.captions)
    return [
        row.benchmark,
        row.id,
        captions,
        _scores(row),
        earlier_outcome,
        row.outcome,
    ]


def _scores(row: ItemRow) -> str:
    """The scores of each image with all captions; images are parted by a bar."""
    images = []
    for scores in row.scores:
        numbers = map(_number, scores)
        images.append(" ".join(numbers))
    return " | ".join(images)


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.4g}"
