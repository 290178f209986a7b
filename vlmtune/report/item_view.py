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
    note = _note(by_run)
    gain = _gain(by_run)
    if row.rank is not None:
        # Two runs list other candidates of a query: show those that either lists.
        by_run = together(by_run)
        row = next(filter(None, by_run))
    names = ("before", "after") if len(by_run) == 2 else ("scores",)
    # A 2 x 2 item has its four scores as a square too, one for each run.
    four_scores_by_name = []
    for name, item in zip(names, by_run, strict=True):
        four_scores = square(item)
        if four_scores is not None:
            four_scores_by_name.append({"name": name, **four_scores})
    return {
        "id": row.id,
        "note": note,
        "gain": gain,
        "images": [_image_view(k, row, by_run, uri) for k in range(len(row.images))],
        "four_scores": four_scores_by_name,
        "ranked": {"names": names, "queries": rankings(by_run), "whole": row.rank is None},
    }


def _image_view(
    k: int, row: ItemRow, by_run: Sequence[ItemRow | None], uri: Callable[[ImageRef], str | None]
) -> dict[str, Any]:
    """Image `k` of an item, and each caption with its truth and its scores by run."""
    image = row.images[k]
    pairs = []
    for j, caption in enumerate(row.captions):
        # A run without the item has no score of it.
        scores = [item and item.scores[k][j] for item in by_run]
        text = _changed(scores, ".3g")
        pairs.append({"caption": caption, "true": row.true[k][j], "scores": text})
    return {"uri": uri(image), "name": image.path.name, "pairs": pairs}


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
    all_scores = tuple(chain(*row.scores))
    if row.rank is not None:
        true, false = _split(all_scores, tuple(chain(*row.true)))
        if not true or not false:
            return None
        return max(true) - max(false)
    if None in all_scores:
        return None
    margins = []
    for scores, truth in zip(row.scores, row.true, strict=True):
        true, false = _split(scores, truth)
        if true and false:
            margins.append(min(true) - max(false))
    if not margins:
        return None
    return sum(margins) / len(margins)


def _split(
    scores: Sequence[float | None], truth: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """The scores of true and of false captions."""
    true = []
    false = []
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
    images: dict[ImageRef, None] = {}  # without repeats, in the order of the runs
    captions: dict[str, None] = {}
    # Both runs have the same query, so a pair that is true for one run is true for the other.
    truth: dict[Any, bool] = {}
    for item in filter(None, by_run):
        images |= dict.fromkeys(item.images)
        captions |= dict.fromkeys(item.captions)
        truth |= _by_pair(item, item.true)
    out: list[ItemRow | None] = []
    for item in by_run:
        if item is None:
            out.append(None)
            continue
        scores = _by_pair(item, item.scores)
        truth_table = []
        score_table = []
        for image in images:
            pairs = [(image, caption) for caption in captions]
            truth_table.append(tuple(truth.get(pair, False) for pair in pairs))
            score_table.append(tuple(map(scores.get, pairs)))
        complete = replace(
            item,
            images=tuple(images),
            captions=tuple(captions),
            true=tuple(truth_table),
            scores=tuple(score_table),
        )
        out.append(complete)
    return out


def _by_pair(row: ItemRow, table: Sequence[Sequence[Any]]) -> dict[Any, Any]:
    """The cells of a table of a row, such as its scores, by image and caption."""
    pairs = product(row.images, row.captions)
    cells = chain.from_iterable(table)
    return dict(zip(pairs, cells, strict=True))


def _note(by_run: Sequence[ItemRow | None]) -> str:
    """Of a query the grade, if its outcome is one, and the rank of its first true candidate."""
    known = list(filter(None, by_run))
    if all(item.rank is None for item in known):
        return ""
    ranks = [item and item.rank for item in by_run]
    note = f"rank {_changed(ranks, 'd')}"
    if any(item.right is None for item in known):
        grades = [item and item.outcome for item in by_run]
        note = f"{_changed(grades, '.3f')}, {note}"
    return note


def _changed(values: Sequence[int | float | None], form: str) -> str:
    """A number before and after, as far as known."""
    if all(value is None for value in values):
        return ""
    texts = []
    for value in values:
        text = "?" if value is None else format(value, form)
        texts.append(text)
    return " → ".join(texts)
