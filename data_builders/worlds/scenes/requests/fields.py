"""The fields of scene requests, and their checks.

In: a request in JSON. Out: a checked request. Never: a sample of what it leaves out.

A wrong request is an error of one line that begins with the path of the field.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from data_builders.worlds.scenes.scene import (
    CAMERA_DISTANCE,
    CAMERA_PITCH,
    MAX_OBJECTS,
    Background,
    Color,
    Floor,
    Material,
    Shape,
    Size,
    Texture,
    Vector,
    camera_offset,
)
from vlmtune.errors import UserError

RELATIONS = {"left of": "left", "right of": "right", "in front of": "front", "behind": "behind",
             "on": "on", "above": "above"}  # fmt: skip
M = TypeVar("M", bound=BaseModel)
_RELATION = re.compile(rf"({'|'.join(RELATIONS)}) (\d+)")
_FARTHEST = 10.0  # positions beyond this are out of view of every camera


def refusal(path: str, expected: str, got: str, advice: str) -> UserError:
    """Returns the error of a field.

    Example:
        >>> print(refusal("scenes[0].floor", "one of wood, sand", "'mud'", "choose one"))
        scenes[0].floor: expected one of wood, sand, got 'mud'; choose one
    """
    return UserError(f"{path}: expected {expected}, got {got}; {advice}")


def _relation(value: Any) -> tuple[str, int]:
    match = _RELATION.fullmatch(str(value))
    if match is None:
        names = ", ".join(RELATIONS)
        raise ValueError(f"one of {names} and the number of an object, such as 'left of 0'")
    return match[1], int(match[2])


Angle = Annotated[float, Field(ge=-360, le=360)]
Offset = Annotated[float, Field(ge=-2, le=2)]
Coordinate = Annotated[float, Field(ge=-_FARTHEST, le=_FARTHEST)]
# JSON has lists where Python has tuples.
LISTED = Field(strict=False)


class _Part(BaseModel):
    # Without `strict`, "3" and true would pass for numbers.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CameraRequest(_Part):
    """Where the camera is: it circles the middle of the floor and looks at it.

    `azimuth`: degrees from the usual position, to the right; `pitch`: degrees above the horizon;
    `distance` in world units; `jitter`: an offset [x, y, z], sampled where it is left out.
    """

    azimuth: Angle = 0.0
    # A cone seen from above 50 degrees would need other arithmetic (see `geometry.cut_cone`).
    pitch: Annotated[float, Field(ge=15, le=45)] = CAMERA_PITCH
    distance: Annotated[float, Field(ge=10, le=30)] = CAMERA_DISTANCE
    jitter: Annotated[tuple[Offset, Offset, Offset], LISTED] | None = None

    def offset(self) -> Vector:
        """Returns the position minus the usual one, as `scene.camera` takes it."""
        x, y, z = camera_offset(self.azimuth, self.pitch, self.distance)
        dx, dy, dz = self.jitter or (0.0, 0.0, 0.0)
        return x + dx, y + dy, z + dz


class ObjectRequest(_Part):
    """One object; `None` is sampled.

    `position`: world units from the middle of the floor, to the right and to the back for the
    usual camera. `relation`: a key of `RELATIONS` and the number of an object. `height`: of the
    lowest point above the floor, for an object in the air. `standing`: a torus on its rim.
    """

    shape: Shape | None = None
    color: Color | None = None
    material: Material | None = None
    texture: Texture | None = None
    size: Size | None = None
    rotation: Angle | None = None
    standing: bool | None = None
    position: Annotated[tuple[Coordinate, Coordinate], LISTED] | None = None
    height: Annotated[float, Field(ge=0, le=4)] | None = None
    relation: Annotated[tuple[str, int], BeforeValidator(_relation)] | None = None


class SceneRequest(_Part):
    """A scene; `None` is sampled. `light`: degrees, 0 from the usual camera, 90 from the right."""

    floor: Floor | None = None
    background: Background | None = None
    light: Angle | None = None
    camera: CameraRequest = CameraRequest()
    objects: Annotated[list[ObjectRequest], Field(max_length=MAX_OBJECTS, strict=False)] | None = (
        None
    )

    def to_json(self) -> dict[str, Any]:
        """Returns the request in JSON; `parse` gives it back."""
        content = self.model_dump(mode="json", exclude_none=True)
        for obj in content.get("objects", ()):
            if "relation" in obj:
                obj["relation"] = "{} {}".format(*obj["relation"])
        return content


def field_path(names: Sequence[str | int]) -> str:
    """Returns the path of a field.

    Example:
        >>> field_path(["objects", 1, "color"])
        'objects[1].color'
    """
    path = ""
    for name in names:
        path += f"[{name}]" if isinstance(name, int) else f".{name}"
    return path.removeprefix(".")


def validated(model: type[M], content: Any, path: str, renamed: Callable[[str], str] = str) -> M:
    """Returns content as a model; an error names the field under `path`, as `renamed` spells it."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
    where, value = renamed(field_path(first["loc"])), first["input"]
    expected, advice = first["msg"], "change it"
    if first["type"] == "extra_forbidden":
        *parents, value = first["loc"]
        part = {"objects": ObjectRequest, "camera": CameraRequest}.get(str([*parents, ""][0]))
        keys = part.model_fields if part else [*SceneRequest.model_fields, "sweep", "count"]
        expected, advice = f"one of the keys {', '.join(keys)}", "leave it out or rename it"
    elif first["type"] in ("missing", "too_short"):
        expected = "one more item"
    elif first["type"] == "too_long":
        expected = f"at most {first.get('ctx', {}).get('max_length')} items"
    for start in ("Input should be ", "Value error, "):
        expected = expected.removeprefix(start)
    raise refusal(f"{path}{'.' * bool(where)}{where}", expected, f"{value!r:.80}", advice)


def parse(content: Any, path: str, renamed: Callable[[str], str] = str) -> SceneRequest:
    """Returns a request, checked; errors name `path`, and fields as `renamed` spells them.

    Example:
        >>> parse({"objects": [{"color": "red"}]}, "scenes[0]").objects[0].color
        'red'
        >>> try:
        ...     parse({"objects": [{}, {"colour": "red"}]}, "scenes[3]")
        ... except UserError as error:
        ...     print(str(error).partition(", got")[2])
         'colour'; leave it out or rename it
    """
    request = validated(SceneRequest, content, path, renamed)
    _check_objects(request, lambda name: f"{path}.{renamed(name)}")
    return request


def _check_objects(request: SceneRequest, name: Callable[[str], str]) -> None:
    objects = request.objects or []
    supported: dict[int, int] = {}
    for k, obj in enumerate(objects):
        field = f"objects[{k}]"
        if obj.standing and obj.shape not in (None, "torus"):
            raise refusal(name(f"{field}.standing"), "a torus that stands", obj.shape or "",
                          "leave `standing` out")  # fmt: skip
        if obj.relation is None:
            continue
        word, other = obj.relation
        got = f"'{word} {other}'"
        if other >= len(objects) or other == k:
            numbers = ", ".join(str(n) for n in range(len(objects)) if n != k) or "none"
            raise refusal(name(f"{field}.relation"), f"another object of the scene ({numbers})",
                          got, "correct the number")  # fmt: skip
        if word == "on":
            if obj.height is not None:
                raise refusal(name(f"{field}.height"), f"no height of an object {got}",
                              f"{obj.height:g}", "leave one of the two out")  # fmt: skip
            if other in supported:
                raise refusal(name(f"{field}.relation"), "one object on another", f"{got} and "
                              f"objects[{supported[other]}]", "put it elsewhere")  # fmt: skip
            supported[other] = k
        chain, link = [k], obj.relation
        while link is not None and link[1] < len(objects):
            chain.append(link[1])
            if link[1] in chain[:-1]:
                raise refusal(name(f"{field}.relation"), "relations without a circle",
                              " -> ".join(map(str, chain)), "give one a position")  # fmt: skip
            link = objects[link[1]].relation
