"""JSON to dataclasses, strict both ways: no field missing, none unknown, every type as declared."""

import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class MalformedError(ValueError):
    """A value that is not of the declared type, and where it stands."""

    def __init__(self, expected: str, got: Any, where: str) -> None:
        super().__init__(f"{str(got)[:60]!r} where {expected} should be ({where or 'top level'})")


def decode(kind: Any, value: Any, where: str) -> Any:
    """Makes a `kind` of what `json.loads` gave.

    Args:
        kind: A dataclass, a tuple, dict, union or literal type, `Path`, or a scalar type.
        value: The parsed JSON.
        where: Path of the value within the file, for the error.

    Raises:
        MalformedError: The value does not fit.

    Example:
        >>> decode(tuple[int, ...], [1, 2], "steps")
        (1, 2)
        >>> decode(int, "1", "seed")
        Traceback (most recent call last):
        ...
        vlmtune.report.decode.MalformedError: '1' where int should be (seed)
    """
    origin = get_origin(kind)
    if kind is Any:
        made = value
    elif origin in (Union, types.UnionType):
        made = _optional(kind, value, where)
    elif origin is tuple:
        made = _tuple(kind, value, where)
    elif origin is dict:
        inner = get_args(kind)[1]
        made = {k: decode(inner, v, f"{where}.{k}") for k, v in _is(dict, value, where).items()}
    elif origin is Literal:
        made = _literal(kind, value, where)
    elif is_dataclass(kind):
        made = _dataclass(kind, value, where)
    elif kind is Path:
        made = Path(_is(str, value, where))
    elif kind is float:
        made = float(_is((int, float), value, where))
    else:
        made = _is(kind, value, where)
    return made


def _is(kind: Any, value: Any, where: str) -> Any:
    # bool is an int in Python, but not in the layout.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        name = "a number" if isinstance(kind, tuple) else kind.__name__
        raise MalformedError({"dict": "an object", "list": "a list"}.get(name, name), value, where)
    return value


def _optional(kind: Any, value: Any, where: str) -> Any:
    (inner,) = (part for part in get_args(kind) if part is not type(None))
    return None if value is None else decode(inner, value, where)


def _literal(kind: Any, value: Any, where: str) -> Any:
    if value not in get_args(kind):
        raise MalformedError(f"one of {', '.join(map(str, get_args(kind)))}", value, where)
    return value


def _tuple(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    items = _is(list, value, where)
    inner = get_args(kind)
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(items)
    if len(inner) != len(items):
        raise MalformedError(f"a list of {len(inner)}", value, where)
    return tuple(
        decode(part, item, f"{where}[{i}]")
        for i, (part, item) in enumerate(zip(inner, items, strict=True))
    )


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)]
    wrong = sorted(_is(dict, value, where).keys() ^ set(names))
    if wrong:
        raise MalformedError(
            f"the fields {', '.join(names)}", f"{wrong[0]} missing or unknown", where
        )
    dot = f"{where}." if where else ""
    return kind(**{name: decode(hints[name], value[name], dot + name) for name in names})
