"""One item to look at: its pictures and captions with the scores of a run, or of two runs.

In: the rows of an item. Out: a dictionary for `page.html`. Never: a score that no row has.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

from vlmtune.report.four_scores import square
from vlmtune.report.rankings import rankings
from vlmtune.results.item_row import ItemRow
from vlmtune.types import ImageRef


def item_view(
    i: int, row: ItemRow, sides: Sequence[Sequence[ItemRow]], uri: Callable[[ImageRef], str | None]
) -> dict[str, Any]:
    """Item `i` with the scores of the sides: the run alone, or the run after the one before it."""
    by_run: list[ItemRow | None] = []
    for rows in sides:
        item = rows[i] if rows else None  # a run without a file of items
        by_run.append(item)
    view = {"id": row.id, "note": _note(by_run), "gain": _gain(by_run)}
    if row.rank is not None:
        # Two runs list other candidates of a query: show those that either lists.
        by_run = together(by_run)
        row = next(one for one in by_run if one is not None)
    images = []
    for k, image in enumerate(row.images):
        pairs = []
        for j, caption in enumerate(row.captions):
            scores = _scores([one and one.scores[k][j] for one in by_run])
            pairs.append({"caption": caption, "true": row.true[k][j], "scores": scores})
        images.append({"uri": uri(image), "name": image.path.name, "pairs": pairs})
    # A 2 x 2 item has its four scores as a square too, one for each run.
    names = ("before", "after") if len(by_run) == 2 else ("scores",)
    by_name = []
    for name, one in zip(names, by_run, strict=True):
        four_scores = square(one)
        if four_scores is not None:
            by_name.append({"name": name, **four_scores})
    ranked = {"names": names, "queries": rankings(by_run), "whole": row.rank is None}
    return {**view, "images": images, "four_scores": by_name, "ranked": ranked}


def _gain(by_run: Sequence[ItemRow | None]) -> float | None:
    """The margin of the last run, minus the margin of the run before it if there is one."""
    last = by_run[-1]
    after = None if last is None else margin(last)
    if after is None:
        return None
    first = by_run[0] if len(by_run) == 2 else None
    before = None if first is None else margin(first)
    return after - (before or 0.0)


def margin(row: ItemRow) -> float | None:
    """How far the true captions score above the false ones; None if a score is unknown.

    The mean over the images of the lowest score of a true caption minus the highest of a false one.
    Of a query: the score of its best true candidate minus the score of its best false one.

    Example:
        >>> margin(ItemRow("a/0", "a", 1.0, (), ("x", "y"), ((True, False),), ((0.5, 0.25),)))
        0.25
    """
    if row.rank is not None:
        true, false = _split(tuple(chain(*row.scores)), tuple(chain(*row.true)))
        return max(true) - max(false) if true and false else None
    if None in chain(*row.scores):
        return None
    margins = []
    for scores, truth in zip(row.scores, row.true, strict=True):
        true, false = _split(scores, truth)
        if true and false:
            margins.append(min(true) - max(false))
    return sum(margins) / len(margins) if margins else None


def _split(
    scores: Sequence[float | None], truth: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """The scores of true and of false captions."""
    true, false = [], []
    for score, is_true in zip(scores, truth, strict=True):
        if score is not None:
            side = true if is_true else false
            side.append(score)
    return true, false


def together(by_run: Sequence[ItemRow | None]) -> list[ItemRow | None]:
    """The rows of one query by several runs, each with the images and captions of all.

    A run has no score where its row has none.

    Example:
        >>> a = ItemRow("q/0", "q", 1.0, (), (), rank=1)
        >>> together([a, None]) == [a, None]
        True
    """
    known = [one for one in by_run if one is not None]
    images = tuple(dict.fromkeys(chain.from_iterable(one.images for one in known)))
    captions = tuple(dict.fromkeys(chain.from_iterable(one.captions for one in known)))
    # A pair is true for one run if it is for the other: both are of one query.
    truth: dict[Any, bool] = {}
    for one in known:
        truth |= _by_pair(one, one.true)
    out: list[ItemRow | None] = []
    for one in by_run:
        if one is None:
            out.append(None)
            continue
        scores = _by_pair(one, one.scores)
        # A line for each image, in the order of all runs' images, with a cell for each caption.
        lines_of_truth, lines_of_scores = [], []
        for image in images:
            pairs = [(image, caption) for caption in captions]
            lines_of_truth.append(tuple(truth.get(pair, False) for pair in pairs))
            lines_of_scores.append(tuple(map(scores.get, pairs)))
        cells = {"true": tuple(lines_of_truth), "scores": tuple(lines_of_scores)}
        out.append(replace(one, images=images, captions=captions, **cells))
    return out


def _by_pair(row: ItemRow, lines: Sequence[Sequence[Any]]) -> dict[Any, Any]:
    """The cells of a table of a row, such as its scores, by image and caption."""
    return dict(zip(product(row.images, row.captions), chain(*lines), strict=True))


def _note(by_run: Sequence[ItemRow | None]) -> str:
    """Of a query the grade, if its outcome is one, and the rank of its first true candidate."""
    known = [one for one in by_run if one is not None]
    if all(one.rank is None for one in known):
        return ""
    ranks, grades = [], []
    for one in by_run:
        rank = None if one is None else one.rank
        ranks.append(str(rank or "?"))  # ranks are from 1
        grade = "?" if one is None else f"{one.outcome:.3f}"
        grades.append(grade)
    note = f"rank {' → '.join(ranks)}"
    if any(one.right is None for one in known):
        note = f"{' → '.join(grades)}, {note}"
    return note


def _scores(values: Sequence[float | None]) -> str:
    """The score before and after, as far as known."""
    if all(value is None for value in values):
        return ""
    texts = []
    for value in values:
        text = "?" if value is None else f"{value:.3g}"
        texts.append(text)
    return " → ".join(texts)
