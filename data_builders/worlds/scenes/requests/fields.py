"""The fields of scene requests, and their checks.

In: a request in JSON. Out: a checked request. Never: a sample of what it leaves out.

A wrong request is an error of one line that begins with the path of the field.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from data_builders.worlds.scenes.scene import (
    BACKGROUNDS,
    CAMERA_AZIMUTH,
    CAMERA_DISTANCE,
    CAMERA_PITCH,
    COLORS,
    FLOORS,
    MATERIALS,
    MAX_OBJECTS,
    SHAPES,
    SIZES,
    TEXTURES,
    Vector,
    camera_position,
    subtract,
)
from vlmtune.errors import UserError

RELATIONS = {"left of": "left", "right of": "right", "in front of": "front", "behind": "behind",
             "on": "on", "above": "above"}  # fmt: skip
_RELATION = re.compile(rf"({'|'.join(RELATIONS)}) (\d+)")
_FARTHEST = 10.0  # positions beyond this are out of view of every camera


def refusal(path: str, expected: str, got: str, advice: str) -> UserError:
    """Returns the error of a field.

    Example:
        >>> print(refusal("scenes[0].floor", "one of wood, sand", "'mud'", "choose one"))
        scenes[0].floor: expected one of wood, sand, got 'mud'; choose one
    """
    return UserError(f"{path}: expected {expected}, got {got}; {advice}")


def _refuse(expected: str, got: Any, advice: str = "correct it") -> PydanticCustomError:
    return PydanticCustomError("field", "{text}", {"text": f"expected {expected}, got {got!r}; "
                                                           f"{advice}"})  # fmt: skip


def _one_of(names: Collection[str]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise _refuse(f"one of {', '.join(names)}", value, "choose one")
        return value

    return check


def _number(low: float, high: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not low <= value <= high:
            raise _refuse(f"a number from {low:g} to {high:g}", value)
        return float(value)

    return check


def _vector(length: int, limit: float) -> Callable[[Any], tuple[float, ...]]:
    names = {2: "[to the right, to the back]", 3: "[x, y, z]"}[length]

    def check(value: Any) -> tuple[float, ...]:
        try:
            if isinstance(value, str) or len(value) != length:
                raise TypeError
            return tuple(_number(-limit, limit)(x) for x in value)
        except (TypeError, PydanticCustomError):
            expected = f"{names}, {length} numbers from {-limit:g} to {limit:g}"
            raise _refuse(expected, value) from None

    return check


def _relation(value: Any) -> tuple[str, int]:
    match = _RELATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        expected = f"one of {', '.join(RELATIONS)} and the number of an object"
        raise _refuse(expected, value, "write for example 'left of 0'")
    return match[1], int(match[2])


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse("true or false", value)
    return value


Angle = Annotated[float, BeforeValidator(_number(-360.0, 360.0))]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CameraRequest(_Part):
    """Where the camera is: it circles the middle of the floor and looks at it.

    `azimuth`: degrees from the usual position, to the right; `pitch`: degrees above the horizon;
    `distance` in world units; `jitter`: an offset [x, y, z], sampled where it is left out.
    """

    azimuth: Angle = 0.0
    # A cone seen from above 50 degrees would need other arithmetic (see `geometry.cut_cone`).
    pitch: Annotated[float, BeforeValidator(_number(15.0, 45.0))] = CAMERA_PITCH
    distance: Annotated[float, BeforeValidator(_number(10.0, 30.0))] = CAMERA_DISTANCE
    jitter: Annotated[Vector | None, BeforeValidator(_vector(3, 2.0))] = None

    def offset(self) -> Vector:
        """Returns the position minus the usual one, as `scene.camera` takes it."""
        turned = camera_position(CAMERA_AZIMUTH + self.azimuth, self.pitch, self.distance)
        usual = camera_position(CAMERA_AZIMUTH, CAMERA_PITCH, CAMERA_DISTANCE)
        x, y, z = subtract(turned, usual)
        dx, dy, dz = self.jitter or (0.0, 0.0, 0.0)
        return x + dx, y + dy, z + dz


class ObjectRequest(_Part):
    """One object; `None` is sampled.

    `position`: world units from the middle of the floor, to the right and to the back for the
    usual camera. `relation`: a key of `RELATIONS` and the number of an object. `height`: of the
    lowest point above the floor, for an object in the air. `standing`: a torus on its rim.
    """

    shape: Annotated[str | None, BeforeValidator(_one_of(SHAPES))] = None
    color: Annotated[str | None, BeforeValidator(_one_of(COLORS))] = None
    material: Annotated[str | None, BeforeValidator(_one_of(MATERIALS))] = None
    texture: Annotated[str | None, BeforeValidator(_one_of(TEXTURES))] = None
    size: Annotated[str | None, BeforeValidator(_one_of(SIZES))] = None
    rotation: Annotated[float | None, BeforeValidator(_number(-360.0, 360.0))] = None
    standing: Annotated[bool | None, BeforeValidator(_boolean)] = None
    position: Annotated[
        tuple[float, float] | None, BeforeValidator(_vector(2, _FARTHEST))
    ] = None  # fmt: skip
    height: Annotated[float | None, BeforeValidator(_number(0.0, 4.0))] = None
    relation: Annotated[tuple[str, int] | None, BeforeValidator(_relation)] = None


class SceneRequest(_Part):
    """A scene; `None` is sampled. `light`: degrees, 0 from the usual camera, 90 from the right."""

    floor: Annotated[str | None, BeforeValidator(_one_of(FLOORS))] = None
    background: Annotated[str | None, BeforeValidator(_one_of(BACKGROUNDS))] = None
    light: Annotated[float | None, BeforeValidator(_number(-360.0, 360.0))] = None
    camera: CameraRequest = CameraRequest()
    objects: Annotated[list[ObjectRequest], Field(max_length=MAX_OBJECTS)] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the request in JSON; `parse` gives it back."""
        content = self.model_dump(mode="json", exclude_none=True)
        for obj in content.get("objects", ()):
            if "relation" in obj:
                obj["relation"] = "{} {}".format(*obj["relation"])
        return content


_TYPES = {"model_type": "an object {...}", "list_type": "a list [...]"}


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


def parse(content: Any, path: str, renamed: Callable[[str], str] = str) -> SceneRequest:
    """Returns a request, checked; `path` names it in errors.

    Args:
        content: The request, as JSON has it.
        path: For example "scenes[3]".
        renamed: Gives the name under which errors state a field of the request.

    Raises:
        UserError: A key is unknown, a value is wrong, or relations name no object or form a circle.

    Example:
        >>> parse({"objects": [{"color": "red"}]}, "scenes[0]").objects[0].color
        'red'
        >>> try:
        ...     parse({"objects": [{}, {"colour": "red"}]}, "scenes[3]")
        ... except UserError as error:
        ...     print(str(error).partition(", got")[2])
         'colour'; correct the key
    """
    try:
        request = SceneRequest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = renamed(field_path(first["loc"]))
        text = _message(first)
        raise UserError(f"{path}{'.' * bool(where)}{where}: {text}") from None
    _check_objects(request, lambda name: f"{path}.{renamed(name)}")
    return request


def _message(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] == "field":
        return error["msg"]
    if error["type"] == "extra_forbidden":
        part = {"objects": ObjectRequest, "camera": CameraRequest}
        names = list(error["loc"])
        first = names[0] if len(names) > 1 else ""
        keys = ", ".join(part.get(str(first), SceneRequest).model_fields)
        keys += "" if first in part else ", sweep, count"
        return f"expected one of the keys {keys}, got {names[-1]!r}; correct the key"
    if error["type"] == "too_long":
        return f"expected at most {MAX_OBJECTS} objects, got {len(value)}; leave some out"
    expected = _TYPES.get(error["type"], "another type")
    return f"expected {expected}, got {value!r}; correct it"


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
