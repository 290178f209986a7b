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
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from data_builders.worlds.scenes.requests.fields import SceneRequest, parse, refusal, validated
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
    """Returns the requests of a file, unchecked: one, a list or (`.jsonl`) one a line."""
    path = Path(path)
    expected = "scene requests as JSON"
    with reading(path, expected):
        text = regular(path).read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".jsonl":
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
    paths = [f"scenes[{k}]" for k in range(len(requests))]
    swept = [
        validated(_Swept, content, path) for content, path in zip(requests, paths, strict=True)
    ]
    images = sum(request.images for request in swept)
    if limit is not None and images > limit:
        path, most = max(zip(paths, swept, strict=True), key=lambda pair: pair[1].images)
        got = f"{images:,}, {most.images:,} of them of this request"
        advice = "sweep fewer values or raise `limit`"
        raise refusal(path, f"at most {limit:,} images in all", got, advice)
    return [request.family(path) for request, path in zip(swept, paths, strict=True)]


class _Swept(BaseModel):
    """A request with its keys `sweep` and `count`; all other keys are extra here."""

    model_config = ConfigDict(extra="allow", strict=True)

    count: PositiveInt = 1
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    @property
    def images(self) -> int:
        return self.count * math.prod(map(len, self.sweep.values()))

    def family(self, path: str) -> SceneFamily:
        names, combinations = list(self.sweep), itertools.product(*self.sweep.values())
        values = [dict(zip(names, row, strict=True)) for row in combinations]
        requests = []
        for row in values:
            content = copy.deepcopy(self.model_extra)
            for name, value in row.items():
                _set(content, name, value, f"{path}.sweep")
            requests.append(parse(content, path, lambda field: _swept(field, self.sweep)))
        return SceneFamily(path, tuple(requests), tuple(values), self.count)


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
            raise refusal(path, expected, repr(name), "add the object, or write another path")
    if not isinstance(content, dict) or last in content:
        raise refusal(path, "fields that the request does not set besides", repr(name),
                      "leave it out of one of the two")  # fmt: skip
    content[last] = value
