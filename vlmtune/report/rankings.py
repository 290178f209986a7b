"""How each run ranks the captions of an image, or the images of a caption.

In: the rows of an item. Out: ranked lists with shaded scores for the page. Never: a rank among
candidates that the rows do not have.
"""

from collections.abc import Sequence
from typing import Any

from vlmtune.results.item_row import ItemRow

SHORTEST = 3  # candidates; the rank of one of two is clear from its score


def rankings(by_run: Sequence[ItemRow | None]) -> list[dict[str, Any]]:
    """The ranked candidates of each query of an item, in the order of the last run.

    With three images or more each caption is a query that ranks them; else each image with three
    captions or more is. A run without the item, or without a score of a candidate, has no cell. Of
    a tie the false candidate ranks first. A cell is the darker the higher its score among those of
    its run.

    Source: Wang et al. 2023 (EqSim), figures 1 and 7.

    Returns:
        For each query its number (of the image or the caption, by `kind`), and `rows`: the number
        of the candidate, whether it is true, and a cell of each run.

    Example:
        >>> true, one = ((True, False, False),), ((0.5, 0.75, 0.25),)
        >>> from pathlib import Path
        >>> from vlmtune.types import ImageRef
        >>> image = (ImageRef(Path("a.png")),)
        >>> before = ItemRow("a/0", "a", 0.0, image, ("x", "y", "z"), true, one)
        >>> after = ItemRow("a/0", "a", 1.0, image, ("x", "y", "z"), true, ((0.5, 0.1, 0.2),))
        >>> (ranking,) = rankings([before, after])
        >>> [(row["number"], [cell["rank"] for cell in row["cells"]]) for row in ranking["rows"]]
        [(0, [2, 1]), (2, [3, 2]), (1, [1, 3])]
    """
    row = next((one for one in by_run if one is not None), None)
    if row is None:
        return []
    by_caption = len(row.images) >= SHORTEST
    queries = range(len(row.captions if by_caption else row.images))
    ranked = [_ranking(query, by_caption, row, by_run) for query in queries]
    return [one for one in ranked if len(one["rows"]) >= SHORTEST]


def _ranking(
    query: int, by_caption: bool, row: ItemRow, by_run: Sequence[ItemRow | None]
) -> dict[str, Any]:
    def of_query(table: Sequence[Sequence[Any]]) -> list[Any]:
        return [line[query] for line in table] if by_caption else list(table[query])

    true = of_query(row.true)
    columns = [[None] * len(true) if one is None else of_query(one.scores) for one in by_run]
    cells = [_cells(column, true) for column in columns]
    compared = [i for i in range(len(true)) if any(column[i] is not None for column in columns)]

    def order(i: int) -> tuple[int, ...]:  # in the last run, then in those before it
        of_runs = [column[i] for column in reversed(cells)]
        return tuple(len(true) + 1 if cell is None else cell["rank"] for cell in of_runs)

    return {
        "kind": "caption" if by_caption else "image",
        "query": query,
        "rows": [
            {"number": i, "true": true[i], "cells": [column[i] for column in cells]}
            for i in sorted(compared, key=order)
        ],
    }


def _cells(scores: Sequence[float | None], true: Sequence[bool]) -> list[dict[str, Any] | None]:
    """The rank, the score and the shade of each candidate in one run."""
    known = [(s, t) for s, t in zip(scores, true, strict=True) if s is not None]
    if not known:
        return [None] * len(scores)
    low, high = min(known)[0], max(known)[0]

    def rank(score: float, is_true: bool) -> int:
        return 1 + sum(s > score or (s == score and is_true and not t) for s, t in known)

    return [
        None
        if score is None
        else {
            "rank": rank(score, is_true),
            "text": f"{score:.3g}",
            "shade": round(100 * (score - low) / ((high - low) or 1.0)),
        }
        for score, is_true in zip(scores, true, strict=True)
    ]
