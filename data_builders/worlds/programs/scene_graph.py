"""Scene graphs: objects with four attributes, and which object has which relation to which.

In: CLEVR's scenes JSON (Johnson et al. 2017), of CLEVR or of `data_builders.worlds.scenes`.
Out: checked graphs. Never: an image, or a relation that the file does not state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from vlmtune.errors import UserError
from vlmtune.storage.files import read_json

ATTRIBUTES = ("size", "color", "material", "shape")  # in the order of words: "small red metal cube"
RELATIONS = ("left", "right", "front", "behind")
SIZE = (480, 320)  # of CLEVR's images, in pixels; the embedded world's scenes state theirs
EXPECTED = "CLEVR scenes"
ADVICE = "use the file as distributed, or build `scenes`"
Objects = frozenset[int]


_Word = Annotated[str, Field(pattern=r"\S")]
_Number = Annotated[int, Field(strict=True, ge=0)]
_Pair = Annotated[list[float], Field(min_length=2)]
_Lists = list[list[_Number]]


class _Object(TypedDict):
    """An object, as far as it is read."""

    size: _Word
    color: _Word
    material: _Word
    shape: _Word
    pixel_coords: NotRequired[_Pair]


class _Relationships(TypedDict):
    """Which objects are left of each object, and so on."""

    left: _Lists
    right: _Lists
    front: _Lists
    behind: _Lists


class _Row(TypedDict):
    """A scene, as far as it is read."""

    image_filename: str
    image_index: _Number
    split: str
    objects: list[_Object]
    relationships: _Relationships
    image_size: NotRequired[_Pair]


class _Content(TypedDict):
    """A file of scenes."""

    scenes: Annotated[list[_Row], Field(min_length=1)]


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
    """Reads `{"scenes": [...]}`."""
    content = read_json(path, EXPECTED, ADVICE, shape=_Content)
    return [_scene(path, number, row) for number, row in enumerate(content["scenes"])]


def vocabulary(scenes: Sequence[SceneGraph]) -> dict[str, tuple[str, ...]]:
    """The values of each attribute that occur, sorted."""
    values: dict[str, set[str]] = {attribute: set() for attribute in ATTRIBUTES}
    for scene in scenes:
        for obj in scene.objects:
            for attribute in ATTRIBUTES:
                values[attribute].add(obj[attribute])
    return {attribute: tuple(sorted(occurring)) for attribute, occurring in values.items()}


def _scene(path: Path, number: int, row: _Row) -> SceneGraph:
    related = {}
    for name in RELATIONS:
        where = f"scenes/{number}/relationships/{name}"
        related[name] = _related(path, where, row["relationships"][name], len(row["objects"]))
    objects: list[dict[str, str]] = []
    for obj in row["objects"]:
        objects.append({attribute: obj[attribute] for attribute in ATTRIBUTES})
    return SceneGraph(
        row["image_filename"],
        row["image_index"],
        row["split"],
        tuple(objects),
        related,
        _halves(row),
    )


def _halves(row: _Row) -> dict[str, Objects]:
    """The objects of each half; those on the line between two halves are in neither."""
    width, height, *_ = row.get("image_size", SIZE)
    halves: dict[str, set[int]] = {name: set() for name in RELATIONS}
    for number, obj in enumerate(row["objects"]):
        if "pixel_coords" not in obj:
            return {}
        x, y, *_ = obj["pixel_coords"]
        if x != width / 2:
            halves["left" if x < width / 2 else "right"].add(number)
        if y != height / 2:
            halves["front" if y > height / 2 else "behind"].add(number)
    return {name: frozenset(numbers) for name, numbers in halves.items()}


def _related(
    path: Path, where: str, lists: Sequence[Sequence[int]], count: int
) -> tuple[Objects, ...]:
    """The objects that are in a relation to each object; a wrong number would be a wrong answer."""
    rows = list(map(frozenset, lists))
    everything = set(range(count))
    came = "" if len(rows) == count else f"{len(rows)} lists"
    for number, (others, listed) in enumerate(zip(rows, lists, strict=True)):
        if len(others) < len(listed) or not others <= everything - {number}:
            came = came or f"{listed} at {number}"
    if came:
        raise UserError(
            f"expected a list for each of {count} objects, of other objects' numbers, at {where} "
            f"of {path}, got {came}: {ADVICE}"
        )
    return tuple(rows)
