"""Changes of a file at random: of the values in it where its form is known, else of its bytes.

In: the bytes of a file, and a generator of random numbers. Out: other bytes. Never: a file.
"""

import json
import random
from typing import Any

WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, float("nan"), float("inf"), "", "x", "../../etc/passwd"),
    *("\x1b]0;owned\x07", "a\nb", [], {}, [[]], {"a": {}}, ["x"] * 50, {"class_path": "os.system"}),
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Returns a changed copy: of JSON, lines of JSON or a table if the file is one."""
    kind = draw.random()
    forms = (_json, _json_lines, _table)
    change = next((form for form in forms if form(content, None) is not None), None)
    if change is None or kind >= 0.7:
        return _of_bytes(content, draw)
    if kind < 0.6:
        return change(content, draw) or b""
    return b"[" * 100_000 if kind < 0.65 else content.decode().encode("utf-16")


def _json(content: bytes, draw: random.Random | None) -> bytes | None:
    """Changes JSON; returns None for anything else, and the content if nothing is to be drawn."""
    try:
        value: Any = json.loads(content)
    except ValueError:
        return None
    return content if draw is None else _dumped(_of_value(value, draw))


def _json_lines(content: bytes, draw: random.Random | None) -> bytes | None:
    """As `_json`, for JSON lines."""
    lines = content.splitlines()
    if len(lines) < 2 or any(_json(line, None) is None for line in lines):
        return None
    if draw is not None:
        number = draw.randrange(len(lines))
        lines[number] = _json(lines[number], draw) or b""
    return b"\n".join(lines) + b"\n"


def _table(content: bytes, draw: random.Random | None) -> bytes | None:
    """As `_json`, for a table whose cells are separated by commas or tabs."""
    try:
        rows = content.decode().splitlines()
    except ValueError:
        return None
    separator = next((x for x in "\t," if rows and all(x in row for row in rows)), None)
    if separator is None:
        return None
    if draw is not None:
        number = draw.randrange(len(rows))
        cells = rows[number].split(separator)
        wrong = draw.choice(WRONG)
        cells[draw.randrange(len(cells))] = wrong if isinstance(wrong, str) else json.dumps(wrong)
        rows[number] = separator.join(cells)
    return ("\n".join(rows) + "\n").encode("utf-8", "surrogatepass")


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _of_value(value: Any, draw: random.Random) -> Any:
    """Replaces, removes or adds one value, at any depth."""
    inner = isinstance(value, dict | list) and len(value) > 0 and draw.random() < 0.8
    if not inner:
        return draw.choice(WRONG)
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    chosen, kind = draw.choice(keys), draw.random()
    changed: Any = value.copy()
    if kind < 0.15:
        del changed[chosen]
    elif kind < 0.25 and isinstance(value, dict):
        changed["x" * draw.randint(1, 9)] = draw.choice(WRONG)
    else:
        changed[chosen] = _of_value(value[chosen], draw)
    return changed


def _of_bytes(content: bytes, draw: random.Random) -> bytes:
    """Cuts, lengthens or replaces the file, or changes one or two bits."""
    kind, where = draw.randrange(5), draw.randrange(max(1, len(content)))
    if kind == 0:
        return content[:where]
    if kind == 1:
        return content + draw.randbytes(9)
    if kind == 2:
        return b"" if draw.random() < 0.3 else draw.randbytes(100)
    damaged = bytearray(content)
    for _ in range(kind - 2):
        if damaged:
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)
