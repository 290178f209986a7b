"""One item to look at: its pictures and captions with the scores of a run, or of two runs.

In: the rows of an item. Out: a dictionary for `page.html`. Never: a score that no row has.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from vlmtune.report.four_scores import square
from vlmtune.report.media import Thumbnails
from vlmtune.report.rankings import rankings
from vlmtune.results.item_row import ItemRow


def item_view(
    i: int, row: ItemRow, sides: Sequence[Sequence[ItemRow]], thumbnails: Thumbnails
) -> dict[str, Any]:
    """Item `i` with the scores of the sides: the run alone, or the run after the one before it."""
    by_run = [rows[i] if rows else None for rows in sides]
    before, after = [None, *(one and margin(one) for one in by_run)][-2:]
    view = {
        "id": row.id,
        "note": _note(by_run),
        "gain": None if after is None else after - (before or 0.0),
    }
    if row.rank is not None:
        by_run = together(by_run)
        row = next(one for one in by_run if one is not None)
    images = []
    for k, image in enumerate(row.images):
        pairs = [
            {
                "caption": caption,
                "true": row.true[k][j],
                "scores": _scores([one and one.scores[k][j] for one in by_run]),
            }
            for j, caption in enumerate(row.captions)
        ]
        images.append({"uri": thumbnails(image), "name": image.path.name, "pairs": pairs})
    names = ("before", "after") if len(by_run) == 2 else ("scores",)
    both = [(name, square(one)) for name, one in zip(names, by_run, strict=True)]
    four = [{"name": name, **one} for name, one in both if one is not None]
    ranked = {"names": names, "queries": rankings(by_run), "whole": row.rank is None}
    return {**view, "images": images, "four_scores": four, "ranked": ranked}


def margin(row: ItemRow) -> float | None:
    """How far the true captions score above the false ones; None if a score is unknown.

    The mean over the images of the lowest score of a true caption minus the highest of a false one.
    Of a query: the score of its best true candidate minus that of its best false one.

    Example:
        >>> margin(ItemRow("a/0", "a", 1.0, (), ("x", "y"), ((True, False),), ((0.5, 0.25),)))
        0.25
    """
    if row.rank is not None:
        true, false = _split(tuple(chain(*row.scores)), tuple(chain(*row.true)))
        return max(true) - max(false) if true and false else None
    if any(score is None for line in row.scores for score in line):
        return None
    sides = [_split(*line) for line in zip(row.scores, row.true, strict=True)]
    margins = [min(true) - max(false) for true, false in sides if true and false]
    return sum(margins) / len(margins) if margins else None


def _split(
    scores: Sequence[float | None], truth: Sequence[bool]
) -> tuple[list[float], list[float]]:
    """The scores of true and of false captions."""
    pairs = [(s, t) for s, t in zip(scores, truth, strict=True) if s is not None]
    return [s for s, t in pairs if t], [s for s, t in pairs if not t]


def together(by_run: Sequence[ItemRow | None]) -> list[ItemRow | None]:
    """The rows of one query by several runs, each with the images and captions of all.

    A run has no score where its row has none.

    Example:
        >>> a = ItemRow("q/0", "q", 1.0, (), (), rank=1)
        >>> together([a, None]) == [a, None]
        True
    """
    known = [one for one in by_run if one is not None]
    images = tuple(dict.fromkeys(image for one in known for image in one.images))
    captions = tuple(dict.fromkeys(text for one in known for text in one.captions))
    truth = {pair: true for one in known for pair, (_, true) in _cells(one).items()}

    def widened(one: ItemRow) -> ItemRow:
        cells = _cells(one)
        return replace(
            one,
            images=images,
            captions=captions,
            true=tuple(tuple(truth.get((x, y), False) for y in captions) for x in images),
            scores=tuple(tuple(cells.get((x, y), (None,))[0] for y in captions) for x in images),
        )

    return [one and widened(one) for one in by_run]


def _cells(row: ItemRow) -> dict[Any, tuple[float | None, bool]]:
    """The score and the truth of each pair of an image and a caption."""
    return {
        (image, caption): (row.scores[k][j], row.true[k][j])
        for k, image in enumerate(row.images)
        for j, caption in enumerate(row.captions)
    }


def _note(by_run: Sequence[ItemRow | None]) -> str:
    """Of a query the grade, if its outcome is one, and the rank of its first true candidate."""
    known = [one for one in by_run if one is not None]
    if all(one.rank is None for one in known):
        return ""
    ranks = ["?" if one is None or one.rank is None else str(one.rank) for one in by_run]
    note = f"rank {' → '.join(ranks)}"
    if any(one.right is None for one in known):
        grades = ["?" if one is None else f"{one.outcome:.3f}" for one in by_run]
        note = f"{' → '.join(grades)}, {note}"
    return note


def _scores(values: Sequence[float | None]) -> str:
    """The score before and after, as far as known."""
    if all(value is None for value in values):
        return ""
    return " → ".join("?" if value is None else f"{value:.3g}" for value in values)
