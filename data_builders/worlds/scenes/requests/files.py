"""A list or a file of scene requests goes in, the checked scenes of each come out, sweeps expanded.

In: JSON. Out: `SceneFamily` objects. Never: a value that a request leaves out.
"""

import copy
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_builders.worlds.scenes.requests.fields import SceneRequest, parse, refusal
from vlmtune.errors import UserError
from vlmtune.storage.files import reading, regular

LIMIT = 10_000
_STEP = re.compile(r"([a-z]+)(?:\[(\d+)\])?")


@dataclass(frozen=True)
class SceneFamily:
    """The scenes of one request: a request for each combination of its sweep.

    `values` hold what the sweep sets in each, by the path of the field. What the request leaves out
    is the same in all combinations. The whole family is sampled `count` times.
    """

    path: str
    requests: tuple[SceneRequest, ...]
    values: tuple[dict[str, Any], ...]
    count: int = 1

    @property
    def images(self) -> int:
        """How many images the family has."""
        return self.count * len(self.requests)


def read_requests(path: Path) -> list[Any]:
    """Returns the requests of a file: an object, a list, or (`.jsonl`) an object a line, unchecked.

    Raises:
        UserError: The file cannot be read or is not JSON.
    """
    path = Path(path)
    expected = "scene requests as JSON"
    with reading(path, expected):
        text = regular(path).read_text(encoding="utf-8-sig")
    if path.suffix.lower() != ".jsonl":
        with reading(path, expected):
            content = _loads(text)
        return content if isinstance(content, list) else [content]
    requests = []
    for number, line in enumerate(text.splitlines(), start=1):
        with reading(f"line {number} of {path}", expected):
            if line.strip():
                requests.append(_loads(line))
    return requests


def _loads(text: str) -> Any:
    def refuse(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def families(requests: Sequence[Any], limit: int | None = LIMIT) -> list[SceneFamily]:
    """Returns the families of requests, checked.

    Args:
        requests: Requests as JSON has them, each with the further keys `sweep` (an object: the path
            of a field, and a list of its values) and `count`.
        limit: Largest number of images in all; None for no limit.

    Raises:
        UserError: A request is wrong, or there are more images than `limit`.

    Example:
        >>> sweep = {"floor": ["sand", "wood"], "objects[0].color": ["red", "blue", "gray"]}
        >>> [family] = families([{"objects": [{}], "sweep": sweep, "count": 2}])
        >>> family.images, family.values[1]
        (12, {'floor': 'sand', 'objects[0].color': 'blue'})
    """
    if not requests:
        raise UserError("expected scene requests, got none: give one or more")
    parts = [_Parts.of(content, f"scenes[{k}]") for k, content in enumerate(requests)]
    images = sum(part.images for part in parts)
    if limit is not None and images > limit:
        most = max(parts, key=lambda part: part.images)
        got = f"{images:,}, {most.images:,} of them of this request"
        advice = "sweep fewer values or raise `limit`"
        raise refusal(most.path, f"at most {limit:,} images in all", got, advice)
    return [part.family() for part in parts]


@dataclass(frozen=True)
class _Parts:
    """A request without its keys `sweep` and `count`, and those."""

    path: str
    plain: dict[str, Any]
    sweep: dict[str, list[Any]]
    count: int

    @classmethod
    def of(cls, content: Any, path: str) -> "_Parts":
        if not isinstance(content, Mapping):
            raise refusal(path, "an object {...}", repr(content), "correct it")
        plain = {key: value for key, value in content.items() if key not in ("sweep", "count")}
        count = content.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            expected = "a whole number of at least 1"
            raise refusal(f"{path}.count", expected, repr(count), "correct it")
        return cls(path, plain, _sweep(content.get("sweep", {}), f"{path}.sweep"), count)

    @property
    def images(self) -> int:
        return self.count * math.prod(len(values) for values in self.sweep.values())

    def family(self) -> SceneFamily:
        names, combinations = list(self.sweep), itertools.product(*self.sweep.values())
        values = [dict(zip(names, row, strict=True)) for row in combinations]
        requests = []
        for row in values:
            content = copy.deepcopy(self.plain)
            for name, value in row.items():
                _set(content, name, value, f"{self.path}.sweep")
            requests.append(parse(content, self.path, lambda field: _swept(field, self.sweep)))
        return SceneFamily(self.path, tuple(requests), tuple(values), self.count)


def _sweep(sweep: Any, path: str) -> dict[str, list[Any]]:
    if not isinstance(sweep, Mapping):
        example = '{"floor": ["sand", "wood"]}'
        raise refusal(path, f"an object such as {example}", repr(sweep), "correct it")
    for name, values in sweep.items():
        if not isinstance(values, list) or not values:
            expected = "a list of one or more values"
            raise refusal(f"{path}['{name}']", expected, repr(values), "list what to render")
    return dict(sweep)


def _swept(field: str, sweep: Mapping[str, Any]) -> str:
    """The name of a field in errors: a swept one is named by the sweep."""
    name = next((name for name in sweep if field == name or field.startswith(f"{name}[")), None)
    return field if name is None else f"sweep['{name}']"


def _set(content: Any, name: str, value: Any, path: str) -> None:
    """Sets the field of a request that the path `name` names, such as "objects[0].color"."""
    steps: list[str | int] = []
    for part in name.split("."):
        match = _STEP.fullmatch(part)
        if match is None:
            steps.append(name)
            continue
        steps.append(match[1])
        if match[2]:
            steps.append(int(match[2]))
    *parents, last = steps
    for step in parents:
        if isinstance(step, str) and isinstance(content, dict):
            content = content.setdefault(step, {})
        elif isinstance(step, int) and isinstance(content, list) and step < len(content):
            content = content[step]
        else:
            expected = "the path of a field of this request, such as objects[0].color"
            raise refusal(path, expected, repr(name), "add the object, or correct the path")
    if not isinstance(content, dict) or last in content:
        raise refusal(path, "fields that the request does not set besides", repr(name),
                      "leave it out of one of the two")  # fmt: skip
    content[last] = value
