"""Items to look at: those that a run wins or loses against another, or gets right or wrong alone.

In: runs and their items. Out: dictionaries for `page.html`, lines for `report.md`.
Never: a comparison of items that are not the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmtune.report.differences import Comparison
from vlmtune.report.gallery import quota
from vlmtune.report.item_row import ItemRow
from vlmtune.report.items_file import Items
from vlmtune.report.media import Thumbnails
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import baseline, colours, titled

SHOWN = 24  # most items of a group on the page
PICTURES = 480  # on the page; about 3 MB
LINES = 6  # items of a group in report.md
EQUAL = 1e-12  # outcomes that differ by less are equal
Numbers = list[int]


def flips(
    comparisons: Sequence[Comparison], runs: Sequence[RunReport], items: Mapping[str, Items]
) -> list[dict[str, Any]]:
    """Returns groups of items: the first ones won and lost in each comparison.

    Of a run without another to compare it with, they are the first right and wrong ones. `items`
    has the items of a run by its name; in a comparison those of one of the two runs are enough, the
    other's scores are then left out. If pictures would be more than `PICTURES`, every group gets
    the same number of them.
    """
    first = baseline(runs)
    chosen = _alone(runs, items) if first is None else _compared(comparisons, runs, items, first)
    sizes = [sum(_pictures(rows[i]) for i in some[:SHOWN]) for _, rows, _, _, some in chosen]
    most, thumbnails = quota(sizes, PICTURES), Thumbnails()
    return [
        {
            **head,
            "total": len(numbers),
            "items": [
                _item(i, rows[i], (there, here) if head["against"] else (here,), thumbnails)
                for i in _fitting(rows, numbers, most)
            ],
        }
        for head, rows, here, there, numbers in chosen
    ]


_Group = tuple[dict[str, Any], Sequence[ItemRow], Sequence[ItemRow], Sequence[ItemRow], Numbers]


def _compared(
    comparisons: Sequence[Comparison],
    runs: Sequence[RunReport],
    items: Mapping[str, Items],
    first: int,
) -> list[_Group]:
    """The head, the rows of either run, and the numbers of the items of each group."""
    base, out = {result.benchmark: result for result in runs[first].results}, []
    for one in comparisons:
        name, old = one.result.benchmark, base.get(one.result.benchmark)
        here, there = (_rows(items, runs[i].name, name) for i in (one.run, first))
        rows = here or there
        if one.paired is None or old is None or len(rows) != len(one.result.outcomes):
            continue
        pairs = list(zip(one.result.outcomes, old.outcomes, strict=True))
        for verdict, sign in (("won", 1), ("lost", -1)):
            numbers = [i for i, (new, before) in enumerate(pairs) if sign * (new - before) > EQUAL]
            if numbers and rows[numbers[0]].captions:
                head = _head(one.title, runs, one.run, verdict, runs[first].name)
                out.append((head, rows, here, there, numbers))
    return out


def _alone(runs: Sequence[RunReport], items: Mapping[str, Items]) -> list[_Group]:
    out = []
    for i, run in enumerate(runs):
        for result in [] if run.text_only else run.results:
            rows = _rows(items, run.name, result.benchmark)
            for verdict in ("right", "wrong"):
                right = verdict == "right"
                numbers = [k for k, row in enumerate(rows) if row.right is right]
                if numbers and rows[numbers[0]].captions:
                    title = titled(result.benchmark, result.convention)
                    out.append((_head(title, runs, i, verdict, ""), rows, rows, (), numbers))
    return out


def _head(
    title: str, runs: Sequence[RunReport], i: int, verdict: str, against: str
) -> dict[str, Any]:
    return {
        "title": title,
        "run": runs[i].name,
        "colour": colours(runs)[i],
        "against": against,
        "verdict": verdict,
        "good": verdict in ("won", "right"),
    }


def flip_lines(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The first of the same as lines of text: captions, the true ones marked, with the scores."""
    lines = []
    for group in groups:
        against = f" against {group['against']}" if group["against"] else ""
        head = f"{group['title']}, {group['run']}{against}"
        lines += [f"### {head}: {group['verdict']} {group['total']}", ""]
        for item in group["items"][:LINES]:
            pairs = [pair for image in item["images"] for pair in image["pairs"]]
            cells = [
                f"{'✓' if pair['true'] else '✗'} {pair['caption']}"
                + (f" ({pair['scores']})" if pair["scores"] else "")
                for pair in pairs
            ]
            lines.append(f"- {item['id']}: {'; '.join(cells)}")
        lines.append("")
    return lines


def margin(row: ItemRow) -> float | None:
    """How far the true captions score above the false ones; None if a score is unknown.

    The mean over the images of the lowest score of a true caption minus the highest of a false one.

    Example:
        >>> margin(ItemRow("a/0", "a", 1.0, (), ("x", "y"), ((True, False),), ((0.5, 0.25),)))
        0.25
    """
    margins = []
    for line, truth in zip(row.scores, row.true, strict=True):
        true, false = [], []
        for score, is_true in zip(line, truth, strict=True):
            if score is None:
                return None
            (true if is_true else false).append(score)
        if true and false:
            margins.append(min(true) - max(false))
    return sum(margins) / len(margins) if margins else None


def _rows(items: Mapping[str, Items], run: str, benchmark: str) -> tuple[ItemRow, ...]:
    return items.get(run, {}).get(benchmark, ())


def _pictures(row: ItemRow) -> int:
    return max(1, len(row.images))


def _fitting(rows: Sequence[ItemRow], numbers: Numbers, most: int) -> Numbers:
    """The first items whose pictures are at most so many; at least one."""
    out: Numbers = []
    for i in numbers[:SHOWN]:
        most -= _pictures(rows[i])
        if most < 0 and out:
            break
        out.append(i)
    return out


def _item(
    i: int, row: ItemRow, sides: Sequence[Sequence[ItemRow]], thumbnails: Thumbnails
) -> dict[str, Any]:
    """An item with the scores of the sides: the run alone, or the run after the one before it."""
    images = []
    for k, image in enumerate(row.images):
        pairs = [
            {
                "caption": caption,
                "true": row.true[k][j],
                "scores": _scores([rows[i].scores[k][j] if rows else None for rows in sides]),
            }
            for j, caption in enumerate(row.captions)
        ]
        images.append({"uri": thumbnails(image), "name": image.path.name, "pairs": pairs})
    before, after = [None, *(margin(rows[i]) if rows else None for rows in sides)][-2:]
    gain = None if after is None else after - (before or 0.0)
    return {"id": row.id, "images": images, "gain": gain}


def _scores(values: Sequence[float | None]) -> str:
    """The score before and after, as far as known."""
    if all(value is None for value in values):
        return ""
    return " → ".join("?" if value is None else f"{value:.3g}" for value in values)
