"""Scene graphs: objects with four attributes, and which object has which relation to which.

In: CLEVR's scenes JSON (Johnson et al. 2017), of CLEVR or of `data_builders.worlds.scenes`.
Out: checked graphs. Never: an image, or a relation that the file does not state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vlmtune.errors import UserError
from vlmtune.storage.files import read_json

ATTRIBUTES = ("size", "color", "material", "shape")  # in the order of words: "small red metal cube"
RELATIONS = ("left", "right", "front", "behind")
SIZE = (480, 320)  # of CLEVR's images, in pixels; the embedded world's scenes state theirs
Objects = frozenset[int]


@dataclass(frozen=True)
class SceneGraph:
    """The n objects of an image and their relations.

    Args:
        image: Name of the image file.
        index: Number of the image in its split.
        split: Name of the split.
        objects: The value of each attribute, of each object.
        related: `related[r][i]` are the objects that are `r` of object i.
        halves: The objects in the half of the image for each relation: at the bottom for "front",
            at the top for "behind". Empty where the file does not state pixels.

    Example:
        >>> red, blue = ({"size": "small", "color": c, "material": "metal", "shape": "cube"}
        ...              for c in ("red", "blue"))
        >>> none, zero = frozenset(), frozenset([0])
        >>> related = {"left": (none, zero), "right": (frozenset([1]), none)}
        >>> scene = SceneGraph("a.png", 0, "val", (red, blue), related)
        >>> sorted(scene.related["left"][1])  # what is left of the blue cube
        [0]
    """

    image: str
    index: int
    split: str
    objects: tuple[Mapping[str, str], ...]
    related: Mapping[str, tuple[Objects, ...]]
    halves: Mapping[str, Objects] = field(default_factory=dict)

    @cached_property
    def all(self) -> Objects:
        """All objects."""
        return frozenset(range(len(self.objects)))

    def having(self, attribute: str, value: str, among: Objects) -> Objects:
        """The objects of a set with a value of an attribute."""
        return frozenset(i for i in among if self.objects[i][attribute] == value)


def read_scenes(path: Path) -> list[SceneGraph]:
    """Reads `{"scenes": [...]}`.

    Raises:
        UserError: The file or one of its fields is not as CLEVR's; the error names the field.
    """
    content = read_json(path, "CLEVR scenes", "download them, or build `scenes`")
    rows = content.get("scenes") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise _error(path, "scenes", "a list of scenes", rows)
    return [_scene(path, f"scenes[{number}]", row) for number, row in enumerate(rows)]


def vocabulary(scenes: Sequence[SceneGraph]) -> dict[str, tuple[str, ...]]:
    """The values of each attribute that occur, sorted."""
    return {
        attribute: tuple(sorted({obj[attribute] for scene in scenes for obj in scene.objects}))
        for attribute in ATTRIBUTES
    }


def _scene(path: Path, where: str, row: Any) -> SceneGraph:
    if not isinstance(row, dict):
        raise _error(path, where, "a scene", row)
    for key, kind in (("image_filename", str), ("image_index", int), ("split", str)):
        if not isinstance(row.get(key), kind) or isinstance(row[key], bool):
            raise _error(path, f"{where}.{key}", f"a value of type {kind.__name__}", row.get(key))
    objects = row.get("objects")
    if not isinstance(objects, list):
        raise _error(path, f"{where}.objects", "a list of objects", objects)
    for number, obj in enumerate(objects):
        for key in ATTRIBUTES:
            value = obj.get(key) if isinstance(obj, dict) else None
            if not isinstance(value, str) or not value.strip():
                raise _error(path, f"{where}.objects[{number}].{key}", "a word", value)
    table = row.get("relationships")
    if not isinstance(table, dict):
        raise _error(path, f"{where}.relationships", "lists by relation", table)
    return SceneGraph(
        row["image_filename"],
        row["image_index"],
        row["split"],
        tuple({key: obj[key] for key in ATTRIBUTES} for obj in objects),
        {
            name: _lists(path, f"{where}.relationships.{name}", table.get(name), len(objects))
            for name in RELATIONS
        },
        _halves(path, where, row),
    )


def _halves(path: Path, where: str, row: Mapping[str, Any]) -> dict[str, Objects]:
    """The objects of each half; those on the line between two halves are in neither."""
    width, height = _numbers(path, f"{where}.image_size", row.get("image_size", SIZE))
    offsets = []
    for number, obj in enumerate(row["objects"]):
        if "pixel_coords" not in obj:
            return {}
        pixels = f"{where}.objects[{number}].pixel_coords"
        x, y = _numbers(path, pixels, obj["pixel_coords"])
        offsets.append((x - width / 2, y - height / 2))
    return {
        "left": frozenset(i for i, (x, _) in enumerate(offsets) if x < 0),
        "right": frozenset(i for i, (x, _) in enumerate(offsets) if x > 0),
        "front": frozenset(i for i, (_, y) in enumerate(offsets) if y > 0),
        "behind": frozenset(i for i, (_, y) in enumerate(offsets) if y < 0),
    }


def _numbers(path: Path, where: str, value: Any) -> tuple[float, float]:
    """The first two numbers of a list."""
    try:
        return float(value[0]), float(value[1])
    except (TypeError, ValueError, LookupError):
        raise _error(path, where, "two numbers of pixels", value) from None


def _lists(path: Path, where: str, lists: Any, count: int) -> tuple[Objects, ...]:
    if not isinstance(lists, list) or len(lists) != count:
        raise _error(path, where, f"a list for each of {count} objects", lists)
    for number, others in enumerate(lists):
        expected = f"numbers of other objects, out of {count}"
        if not isinstance(others, list) or len(set(map(str, others))) < len(others):
            raise _error(path, f"{where}[{number}]", expected, others)
        for other in others:
            if type(other) is not int or not 0 <= other < count or other == number:
                raise _error(path, f"{where}[{number}]", expected, others)
    return tuple(map(frozenset, lists))


def _error(path: Path, where: str, expected: str, value: Any) -> UserError:
    came = "nothing" if value is None else repr(value)[:60]
    return UserError(
        f"expected {expected} at {where} of {path}, got {came}: "
        "use the file as distributed, or correct that field"
    )
