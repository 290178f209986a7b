"""How each run ranks the captions of an image, or the images of a caption.

In: the rows of an item. Out: ranked lists with shaded scores for the page. Never: a rank among
candidates that the rows do not have.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmtune.results.item_row import ItemRow

SHORTEST = 3  # candidates; the rank of one of two is clear from its score


def rankings(by_run: Sequence[ItemRow | None]) -> list[dict[str, Any]]:
    """The ranked candidates of each query of an item, in the order of the last run.

    With three images or more each caption is a query that ranks them; else each image with three
    captions or more is. A run without the item, or without a score of a candidate, has no cell. Of
    a tie the false candidate ranks first. A cell is the darker the higher its score among those of
    its run.

    A ranking has the number of its query (of the image or the caption, by `kind`), and `rows`: the
    number of the candidate, whether it is true, and a cell of each run.

    Source: Wang et al. 2023 (EqSim), figures 1 and 7.

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
    queries = row.captions if by_caption else row.images
    ranked = [_ranking(query, by_caption, row, by_run) for query in range(len(queries))]
    return [one for one in ranked if len(one["rows"]) >= SHORTEST]


def _ranking(
    query: int, by_caption: bool, row: ItemRow, by_run: Sequence[ItemRow | None]
) -> dict[str, Any]:
    def of_query(table: Sequence[Sequence[Any]]) -> list[Any]:
        return [line[query] for line in table] if by_caption else list(table[query])

    true = of_query(row.true)
    columns = []  # of each run, the cell of each candidate or None
    for one in by_run:
        scores = [None] * len(true) if one is None else of_query(one.scores)
        columns.append(_cells(scores, true))
    last = len(true) + 1  # where a run has no score

    def order(line: Mapping[str, Any]) -> list[int]:
        """The ranks of a candidate from the last run to the first."""
        ranks = []
        for cell in reversed(line["cells"]):
            rank = cell["rank"] if cell else last
            ranks.append(rank)
        return ranks

    # A candidate without a score in any run was not compared.
    rows = []
    for number, cells in enumerate(zip(*columns, strict=True)):
        if any(cells):
            rows.append({"number": number, "true": true[number], "cells": list(cells)})
    kind = "caption" if by_caption else "image"
    return {"kind": kind, "query": query, "rows": sorted(rows, key=order)}


def _cells(scores: Sequence[float | None], true: Sequence[bool]) -> list[dict[str, Any] | None]:
    """The rank, the score and the shade of each candidate in one run; None without a score."""
    known = [(s, t) for s, t in zip(scores, true, strict=True) if s is not None]
    if not known:
        return [None] * len(scores)
    low, high = min(known)[0], max(known)[0]
    spread = (high - low) or 1.0
    out: list[dict[str, Any] | None] = []
    for score, is_true in zip(scores, true, strict=True):
        if score is None:
            out.append(None)
            continue
        above = sum(s > score for s, _ in known)
        tied_false = sum(s == score and not t for s, t in known)
        # Of a tie the false candidate ranks first.
        rank = 1 + above + tied_false * is_true
        shade = round(100 * (score - low) / spread)
        out.append({"rank": rank, "text": f"{score:.3g}", "shade": shade})
    return out
