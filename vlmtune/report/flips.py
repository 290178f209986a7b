"""Items to look at: those that a run wins or loses against another, or gets right or wrong alone.

In: runs and their items. Out: dictionaries for `page.html`, lines for `report.md`.
Never: a comparison of items that are not the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmtune.report.differences import Comparison
from vlmtune.report.gallery import quota
from vlmtune.report.item_view import item_view
from vlmtune.report.items_file import Items, part_names
from vlmtune.report.media import Thumbnails
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import baseline, colours, titled
from vlmtune.results.item_row import ItemRow

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
                item_view(i, rows[i], (there, here) if head["against"] else (here,), thumbnails)
                for i in _fitting(rows, numbers, most)
            ],
        }
        for head, rows, here, there, numbers in chosen
    ]


_Rows = Sequence[ItemRow]
_Outcomes = Sequence[float]
_Group = tuple[dict[str, Any], _Rows, _Rows, _Rows, Numbers]


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
        sides: list[tuple[str, _Rows, _Rows, _Rows, _Outcomes, _Outcomes]] = [
            (one.title, rows, here, there, one.result.outcomes, old.outcomes)
        ]
        for title, new, before in _parts(one, runs[one.run].name, runs[first].name, items):
            outcomes = [[row.outcome for row in side] for side in (new, before)]
            sides.append((title, new, new, before, outcomes[0], outcomes[1]))
        for title, rows, here, there, new, before in sides:
            pairs = list(zip(new, before, strict=True))
            for verdict, sign in (("won", 1), ("lost", -1)):
                numbers = [i for i, (x, y) in enumerate(pairs) if sign * (x - y) > EQUAL]
                if numbers and rows[numbers[0]].captions:
                    head = _head(title, runs, one.run, verdict, runs[first].name)
                    out.append((head, rows, here, there, numbers))
    return out


def _parts(
    comparison: Comparison, run: str, first: str, items: Mapping[str, Items]
) -> list[tuple[str, _Rows, _Rows]]:
    """The further parts of a benchmark with equal ids in both runs, such as its image queries."""
    out = []
    for name in part_names(items.get(run, {}), comparison.result.benchmark):
        here, there = _rows(items, run, name), _rows(items, first, name)
        if [row.id for row in here] == [row.id for row in there]:
            out.append((f"{comparison.title}, {_spoken(name)}", here, there))
    return out


def _spoken(part: str) -> str:
    return part.rpartition("/")[2].replace("_", " ")


def _alone(runs: Sequence[RunReport], items: Mapping[str, Items]) -> list[_Group]:
    out = []
    for i, run in enumerate(runs):
        for result in [] if run.text_only else run.results:
            title, known = titled(result.benchmark, result.convention), items.get(run.name, {})
            parts = part_names(known, result.benchmark)
            sides = [(title, _rows(items, run.name, result.benchmark))]
            sides += [(f"{title}, {_spoken(name)}", known[name]) for name in parts]
            for name, rows in sides:
                for verdict in ("right", "wrong"):
                    right = verdict == "right"
                    numbers = [k for k, row in enumerate(rows) if _first_is_true(row) is right]
                    if numbers and rows[numbers[0]].captions:
                        out.append((_head(name, runs, i, verdict, ""), rows, rows, (), numbers))
    return out


def _first_is_true(row: ItemRow) -> bool | None:
    """Whether an item is right; a query whose outcome is a grade is if its first image is."""
    return row.rank == 1 if row.right is None and row.rank is not None else row.right


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
            note = f" ({item['note']})" if item["note"] else ""
            lines.append(f"- {item['id']}{note}: {_compared_pairs(item['images'])}")
        lines.append("")
    return lines


def _compared_pairs(images: Sequence[dict[str, Any]]) -> str:
    """The captions of each image, or a single caption and the names of its images."""
    captions = {pair["caption"] for image in images for pair in image["pairs"]}
    single = len(captions) == 1 and len(images) > 1
    cells = [
        f"{'✓' if pair['true'] else '✗'} {image['name'] if single else pair['caption']}"
        + (f" ({pair['scores']})" if pair["scores"] else "")
        for image in images
        for pair in image["pairs"]
    ]
    return (f"{captions.pop()}: " if single else "") + "; ".join(cells)


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
