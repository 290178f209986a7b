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
from vlmtune.report.seeds import seeds_of
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
    reference = baseline(runs)
    if reference is None:
        groups = _alone(runs, items)
    else:
        groups = _compared(comparisons, runs, items, reference)
    sizes = []
    for group in groups:
        # Only what may be shown counts against the number of pictures.
        candidates = group.numbers[:SHOWN]
        sizes.append(sum(_pictures(group.rows[i]) for i in candidates))
    most = quota(sizes, PICTURES)
    # All groups read their pictures through one cache: most pictures occur in several groups.
    thumbnails = cache(data_uri)
    out = []
    for group in groups:
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
    first_name = runs[first].name
    out: list[_Group] = []
    for comparison in comparisons:
        result = comparison.result
        first_result = runs[first].of(result.benchmark)
        # Only items that were tested in pairs are the same, and in the same order.
        if comparison.paired is None or first_result is None:
            continue
        run_name = runs[comparison.run].name
        new_rows = _rows(items, run_name, result.benchmark)
        old_rows = _rows(items, first_name, result.benchmark)
        rows = new_rows or old_rows  # either run's file shows what the items are
        if len(rows) != len(result.outcomes):
            continue
        head = _head(comparison.title, runs, comparison.run, first_name)
        sides = (old_rows, new_rows)
        before = first_result.outcomes
        after = list(result.outcomes)
        # An item without a group does not count, so it is neither won nor lost.
        for i, group in enumerate(result.groups):
            if group < 0:
                after[i] = before[i]
        out += _won_and_lost(head, rows, sides, after, before)
        # Items are those of the first seed, which says little of what several seeds win.
        if len(seeds_of(runs[comparison.run])) > 1:
            continue
        for title, new_part, old_part in _parts(comparison, run_name, first_name, items):
            new_outcomes = [row.outcome for row in new_part]
            old_outcomes = [row.outcome for row in old_part]
            part_head = {**head, "title": title}
            parts = (old_part, new_part)
            out += _won_and_lost(part_head, new_part, parts, new_outcomes, old_outcomes)
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
    lost = [i for i, gain in enumerate(gains) if gain < -EQUAL]
    return _groups(head, rows, sides, {"won": won, "lost": lost})


def _groups(
    head: dict[str, Any], rows: _Rows, sides: tuple[_Rows, ...], verdicts: Mapping[str, Numbers]
) -> list[_Group]:
    """A group for each verdict that has items; none where items have no captions to show."""
    out = []
    for verdict, numbers in verdicts.items():
        if not numbers:
            continue
        first = rows[numbers[0]]
        if first.captions:
            good = verdict in ("won", "right")
            group_head = {**head, "verdict": verdict, "good": good}
            out.append(_Group(group_head, rows, sides, numbers))
    return out


def _parts(
    comparison: Comparison, run: str, first: str, items: Mapping[str, Items]
) -> list[tuple[str, _Rows, _Rows]]:
    """The further parts of a benchmark with equal ids in both runs, such as its image queries."""
    out = []
    of_run = items.get(run, {})
    for name in part_names(of_run, comparison.result.benchmark):
        new = _rows(items, run, name)
        old = _rows(items, first, name)
        new_ids = [row.id for row in new]
        old_ids = [row.id for row in old]
        if new_ids == old_ids:
            out.append((f"{comparison.title}, {_spoken(name)}", new, old))
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
            for part_title, rows in parts.items():
                head = _head(part_title, runs, i, "")
                out += _groups(head, rows, (rows,), _right_and_wrong(rows))
    return out


def _right_and_wrong(rows: _Rows) -> dict[str, Numbers]:
    """The numbers of the right and of the wrong items; a graded item is in neither list.

    A query whose outcome is a grade is right if its first image is true.
    """
    right = []
    wrong = []
    for number, row in enumerate(rows):
        verdict = row.right
        if verdict is None and row.rank is not None:
            verdict = row.rank == 1
        if verdict is True:
            right.append(number)
        elif verdict is False:
            wrong.append(number)
    return {"right": right, "wrong": wrong}


def _head(title: str, runs: Sequence[RunReport], i: int, against: str) -> dict[str, Any]:
    colour = colours(runs)[i]
    return {"title": title, "run": runs[i].name, "colour": colour, "against": against}


def _rows(items: Mapping[str, Items], run: str, benchmark: str) -> tuple[ItemRow, ...]:
    of_run = items.get(run, {})
    return of_run.get(benchmark, ())


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
