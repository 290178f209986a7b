"""What the cells of a captioned image say: texts, lists of texts, or what is wrong with a cell.

In: cells by column. Out: captions and hard negatives. Never: a table, or an image.
"""

import ast
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from vlmtune.data.table_columns import LISTS, guessed_columns
from vlmtune.data.tables import Cells
from vlmtune.errors import UserError

_TEXT_KEYS = ("raw", "text", "caption", "sentence")  # of a caption that is an object


def captions(cells: Cells) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the captions and the hard negatives of a row, their columns guessed.

    Example:
        >>> captions({"caption": "a dog", "negatives": ["a cat"], "width": 3})
        (('a dog',), ('a cat',))
    """
    by_role = []
    for role in LISTS:
        texts: dict[str, None] = {}
        for column in guessed_columns(role, list(cells)):
            texts |= dict.fromkeys(texts_of_cell(cells[column], column, "the record"))
        by_role.append(tuple(texts))
    return by_role[0], by_role[1]


def is_empty(cell: Any) -> bool:
    """Whether a cell is null or NaN, as pandas writes empty cells."""
    is_nan = isinstance(cell, float) and cell != cell
    return cell is None or is_nan


def texts_of_cell(cell: Any, column: str, where: str) -> list[str]:
    """The captions of a cell: a text, a list of texts, or the text of such a list."""
    if is_empty(cell):
        return []
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        cell = _list(cell)
    if isinstance(cell, Mapping):
        known = [key for key in _TEXT_KEYS if key in cell]
        cell = cell[known[0]] if known else cell
    if isinstance(cell, str):
        text = " ".join(cell.split())
        return [text] if text else []
    if not isinstance(cell, list | tuple):
        refuse_cell(where, column, "a caption or a list of captions", cell)
    texts = []
    for item in cell:
        texts += texts_of_cell(item, column, where)
    return texts


def _list(cell: str) -> Any:
    """The list that a cell writes in JSON or, as pandas does, in Python; else the cell."""
    for read in (json.loads, ast.literal_eval):
        try:
            content = read(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(content, list):
            return content
    return cell


def refuse_cell(
    where: str, column: str, expected: str, cell: Any, fix: str = "change or remove the cell"
) -> NoReturn:
    """Raises the `UserError` of a cell that holds something else."""
    got = "nothing" if cell in (None, "") else repr(cell)[:60]
    raise UserError(f"expected {expected} in {where}, column {column!r}, got {got}: {fix}")
