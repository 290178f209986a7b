"""Text files that builders write.

In: rows or objects. Out: csv text, or a JSON file.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vlmtune.storage.files import write_text


def csv_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns the text of a csv file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


def write_json(path: Path, content: Any) -> None:
    """Writes compact JSON and the folders it needs."""
    write_text(path, json.dumps(content, separators=(",", ":")))
