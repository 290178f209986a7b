"""The items that one run wins or loses against another, with their images and captions.

In: two runs and the items of either. Out: dictionaries for `page.html`, lines for `report.md`.
Never: a comparison of items that are not the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmtune.report.differences import Comparison
from vlmtune.report.items_file import Items
from vlmtune.report.media import data_uri
from vlmtune.report.result import ItemRow
from vlmtune.report.run_report import RunReport
from vlmtune.report.table import baseline

SHOWN = 6  # won items and lost ones each


def flips(
    comparisons: Sequence[Comparison], runs: Sequence[RunReport], items: Mapping[str, Items]
) -> list[dict[str, Any]]:
    """Returns the first won and the first lost items of each comparison whose items are known.

    `items` has the items of a run by its name; those of one of the two runs are enough, the other's
    scores are then left out.
    """
    first = baseline(runs)
    if first is None:
        return []
    base = {result.benchmark: result for result in runs[first].results}
    out = []
    for one in comparisons:
        name, old = one.result.benchmark, base.get(one.result.benchmark)
        here, there = (_rows(items, runs[i].name, name) for i in (one.run, first))
        rows = here or there
        if one.paired is None or old is None or len(rows) != len(one.result.outcomes):
            continue
        pairs = list(zip(one.result.outcomes, old.outcomes, strict=True))
        for verdict, sign in (("won", 1), ("lost", -1)):
            numbers = [i for i, (new, before) in enumerate(pairs) if sign * (new - before) > 1e-12]
            if numbers and rows[numbers[0]].captions:
                out.append(
                    {
                        "title": one.title,
                        "run": runs[one.run].name,
                        "against": runs[first].name,
                        "verdict": verdict,
                        "total": len(numbers),
                        "items": [_item(i, rows[i], here, there) for i in numbers[:SHOWN]],
                    }
                )
    return out


def flip_lines(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The same as lines of text: the captions, the true ones marked, with both scores."""
    lines = []
    for group in groups:
        head = f"{group['title']}, {group['run']} against {group['against']}"
        lines += [f"### {head}: {group['verdict']} {group['total']}", ""]
        for item in group["items"]:
            cells = [
                f"{'✓' if pair['true'] else '✗'} {pair['caption']}{pair['scores']}"
                for image in item["images"]
                for pair in image["pairs"]
            ]
            lines.append(f"- {item['id']}: {'; '.join(cells)}")
        lines.append("")
    return lines


def _rows(items: Mapping[str, Items], run: str, benchmark: str) -> tuple[ItemRow, ...]:
    return items.get(run, {}).get(benchmark, ())


def _item(
    i: int, row: ItemRow, here: Sequence[ItemRow], there: Sequence[ItemRow]
) -> dict[str, Any]:
    images = []
    for k, image in enumerate(row.images):
        pairs = [
            {
                "caption": caption,
                "true": row.true[k][j],
                "scores": _scores(
                    [rows[i].scores[k][j] if rows else None for rows in (there, here)]
                ),
            }
            for j, caption in enumerate(row.captions)
        ]
        images.append({"uri": data_uri(image), "name": image.path.name, "pairs": pairs})
    return {"id": row.id, "images": images}


def _scores(values: Sequence[float | None]) -> str:
    """The score before and after, as far as known."""
    if all(value is None for value in values):
        return ""
    return f" ({' → '.join('?' if value is None else f'{value:.3g}' for value in values)})"
