"""Items to look at: those that a run wins or loses against another, or gets right or wrong alone.

In: runs and their items. Out: dictionaries for `page.html`.
Never: a comparison of items that are not the same.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from vlmtune.report.differences import Comparison
from vlmtune.report.gallery import quota
from vlmtune.report.item_view import item_view
from vlmtune.report.items_file import Items, part_names
from vlmtune.report.media import data_uri
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import baseline, colours, titled
from vlmtune.results.item_row import ItemRow

SHOWN = 24  # most items of a group on the page
PICTURES = 480  # on the page; about 3 MB
EQUAL = 1e-12  # outcomes that differ by less are equal
Numbers = list[int]
_Rows = Sequence[ItemRow]


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
    sizes = []
    for group in chosen:
        most_shown = group.numbers[:SHOWN]
        sizes.append(sum(_pictures(group.rows[i]) for i in most_shown))
    # All groups read their pictures through one cache: most occur in several.
    most = quota(sizes, PICTURES)
    thumbnails = cache(data_uri)
    out = []
    for group in chosen:
        shown = _fitting(group.rows, group.numbers, most)
        views = [item_view(i, group.rows[i], group.sides, thumbnails) for i in shown]
        out.append({**group.head, "total": len(group.numbers), "items": views})
    return out


class _Group(NamedTuple):
    """The items of one verdict: those of the `numbers` among all `rows` of the benchmark.

    `sides` has the rows of the run alone, or those of the baseline and of the run.
    """

    head: dict[str, Any]
    rows: _Rows
    sides: tuple[_Rows, ...]
    numbers: Numbers


def _compared(
    comparisons: Sequence[Comparison],
    runs: Sequence[RunReport],
    items: Mapping[str, Items],
    first: int,
) -> list[_Group]:
    """The items won and lost in each comparison."""
    base = {result.benchmark: result for result in runs[first].results}
    out: list[_Group] = []
    for one in comparisons:
        result = one.result
        old = base.get(one.result.benchmark)
        here = _rows(items, runs[one.run].name, result.benchmark)
        there = _rows(items, runs[first].name, result.benchmark)
        rows = here or there  # either run's file shows what the items are
        # Only items that were tested in pairs are the same, and in the same order.
        if one.paired is None or old is None or len(rows) != len(result.outcomes):
            continue
        head = _head(one.title, runs, one.run, runs[first].name)
        out += _won_and_lost(head, rows, (there, here), result.outcomes, old.outcomes)
        for title, new, before in _parts(one, runs[one.run].name, runs[first].name, items):
            after = [row.outcome for row in new]
            earlier = [row.outcome for row in before]
            of_part = {**head, "title": title}
            out += _won_and_lost(of_part, new, (before, new), after, earlier)
    return out


def _won_and_lost(
    head: dict[str, Any],
    rows: _Rows,
    sides: tuple[_Rows, _Rows],
    after: Sequence[float],
    before: Sequence[float],
) -> list[_Group]:
    gains = [new - old for new, old in zip(after, before, strict=True)]
    won = [i for i, gain in enumerate(gains) if gain > EQUAL]
    lost = [i for i, gain in enumerate(gains) if -gain > EQUAL]
    return _groups(head, rows, sides, {"won": won, "lost": lost})


def _groups(
    head: dict[str, Any], rows: _Rows, sides: tuple[_Rows, ...], verdicts: Mapping[str, Numbers]
) -> list[_Group]:
    """A group for each verdict that has items; none where items have no captions to show."""
    out = []
    for verdict, numbers in verdicts.items():
        if numbers and rows[numbers[0]].captions:
            marks = {"verdict": verdict, "good": verdict in ("won", "right")}
            out.append(_Group({**head, **marks}, rows, sides, numbers))
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
    """The right and the wrong items of each run."""
    out: list[_Group] = []
    for i, run in enumerate(runs):
        if run.text_only:
            continue
        known = items.get(run.name, {})
        for result in run.results:
            title = titled(result.benchmark, result.convention)
            parts = {title: known.get(result.benchmark, ())}
            for name in part_names(known, result.benchmark):
                parts[f"{title}, {_spoken(name)}"] = known[name]
            for name, rows in parts.items():
                right = [_first_is_true(row) for row in rows]
                verdicts = {}
                for verdict, mark in (("right", True), ("wrong", False)):
                    verdicts[verdict] = [k for k, one in enumerate(right) if one is mark]
                out += _groups(_head(name, runs, i, ""), rows, (rows,), verdicts)
    return out


def _first_is_true(row: ItemRow) -> bool | None:
    """Whether an item is right; a query whose outcome is a grade is if its first image is."""
    if row.right is None and row.rank is not None:
        return row.rank == 1
    return row.right


def _head(title: str, runs: Sequence[RunReport], i: int, against: str) -> dict[str, Any]:
    return {"title": title, "run": runs[i].name, "colour": colours(runs)[i], "against": against}


def _rows(items: Mapping[str, Items], run: str, benchmark: str) -> tuple[ItemRow, ...]:
    return items.get(run, {}).get(benchmark, ())


def _pictures(row: ItemRow) -> int:
    return max(1, len(row.images))


def _fitting(rows: Sequence[ItemRow], numbers: Numbers, most: int) -> Numbers:
    """The first items whose pictures are at most so many; at least one."""
    out: Numbers = []
    for i in numbers[:SHOWN]:
        # One item too many for the quota is still shown if it is the only one.
        most -= _pictures(rows[i])
        if most < 0 and out:
            break
        out.append(i)
    return out
