"""Text of annotation files: rows or objects go in, csv text or files come out.

Never decides on a layout.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def csv_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the text of a csv file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_text(path: Path, content: str) -> None:
    """Writes a text file and the folders it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def write_json(path: Path, content: Any) -> None:
    """Writes compact JSON and the folders it needs."""
    write_text(path, json.dumps(content, separators=(",", ":")))
