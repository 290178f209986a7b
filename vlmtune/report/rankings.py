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
    row = next(filter(None, by_run), None)
    if row is None:
        return []
    by_caption = len(row.images) >= SHORTEST
    queries = row.captions if by_caption else row.images
    out = []
    for query in range(len(queries)):
        ranking = _ranking(query, by_caption, row, by_run)
        if len(ranking["rows"]) >= SHORTEST:
            out.append(ranking)
    return out


def _ranking(
    query: int, by_caption: bool, row: ItemRow, by_run: Sequence[ItemRow | None]
) -> dict[str, Any]:
    def of_query(table: Sequence[Sequence[Any]]) -> list[Any]:
        """The values of the candidates: a column of the table for a caption, else a line."""
        if by_caption:
            return [line[query] for line in table]
        return list(table[query])

    true = of_query(row.true)
    columns = []  # of each run, the cell of each candidate or None
    for item in by_run:
        scores = [None] * len(true) if item is None else of_query(item.scores)
        columns.append(_cells(scores, true))
    last = len(true) + 1  # where a run has no score

    def order(line: Mapping[str, Any]) -> list[int]:
        """The ranks of a candidate from the last run to the first."""
        ranks = []
        for cell in reversed(line["cells"]):
            rank = cell["rank"] if cell else last
            ranks.append(rank)
        return ranks

    rows = []
    for number, cells in enumerate(zip(*columns, strict=True)):
        # A candidate without a score in any run was not compared.
        if any(cells):
            rows.append({"number": number, "true": true[number], "cells": list(cells)})
    rows.sort(key=order)
    kind = "caption" if by_caption else "image"
    return {"kind": kind, "query": query, "rows": rows}


def _cells(scores: Sequence[float | None], true: Sequence[bool]) -> list[dict[str, Any] | None]:
    """The rank, the score and the shade of each candidate in one run; None without a score."""
    known = [score for score in scores if score is not None]
    if not known:
        return [None] * len(scores)
    false = [score for score, is_true in zip(scores, true, strict=True) if not is_true]
    low = min(known)
    spread = (max(known) - low) or 1.0
    out: list[dict[str, Any] | None] = []
    for score, is_true in zip(scores, true, strict=True):
        if score is None:
            out.append(None)
            continue
        rank = 1 + sum(other > score for other in known)
        # Of a tie the false candidate ranks first.
        if is_true:
            rank += sum(other == score for other in false)
        shade = round(100 * (score - low) / spread)
        out.append({"rank": rank, "text": f"{score:.3g}", "shade": shade})
    return out
