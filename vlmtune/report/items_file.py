"""`items.jsonl`: the items of a run's benchmarks, for other programs and for the won and lost ones.

In: rows. Out: a file with one JSON object a line, and rows again. Never: a score that was not seen.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError
from vlmtune.report.result import ItemRow
from vlmtune.storage.files import write_text
from vlmtune.types import ImageRef

NAME = "items.jsonl"  # beside report.json
Items = dict[str, tuple[ItemRow, ...]]  # by benchmark, in the order of the outcomes


def write_items(path: Path, rows: Iterable[ItemRow]) -> None:
    """Writes the rows atomically: id, benchmark, outcome, images, captions, truth and scores.

    `true` and `scores` have a list for each image with a value for each caption; a pair that the
    benchmark does not compare has the score null.
    """
    lines = [json.dumps(_line(row), ensure_ascii=False) for row in rows]
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_items(path: Path) -> Items:
    """Reads what `write_items` wrote.

    Raises:
        UserError: The file holds something else.
    """
    out: dict[str, list[ItemRow]] = {}
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = _row(json.loads(line))
                out.setdefault(row.benchmark, []).append(row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"expected items that vlmtune evaluate --items wrote in {path}, got "
            f"{type(error).__name__}: {error}: evaluate again"
        ) from error
    return {name: tuple(rows) for name, rows in out.items()}


def _line(row: ItemRow) -> dict[str, Any]:
    images = [
        {
            "path": str(image.path),
            **({} if image.box is None else {"box": list(image.box)}),
            **({} if image.upright else {"upright": False}),
        }
        for image in row.images
    ]
    head = {"id": row.id, "benchmark": row.benchmark, "outcome": row.outcome}
    return {
        **head,
        "images": images,
        "captions": row.captions,
        "true": row.true,
        "scores": row.scores,
    }


def _row(line: Any) -> ItemRow:
    images = tuple(
        ImageRef(
            Path(one["path"]),
            tuple(one["box"]) if "box" in one else None,
            one.get("upright", True),
        )
        for one in line["images"]
    )
    true, scores = (tuple(map(tuple, line[key])) for key in ("true", "scores"))
    return ItemRow(
        str(line["id"]),
        str(line["benchmark"]),
        float(line["outcome"]),
        images,
        tuple(map(str, line["captions"])),
        true,
        scores,
    )
