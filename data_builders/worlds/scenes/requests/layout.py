"""Where the objects of scene requests are.

In: requests with all attributes. Out: positions, and scenes.

Positions are those given, or are sampled until nothing overlaps and all relations hold.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from data_builders.phrases import clear_direction
from data_builders.worlds.scenes.requests.fields import RELATIONS, ObjectRequest, SceneRequest
from data_builders.worlds.scenes.sampling import (
    CLEARANCE,
    DEPTH_RANGE,
    SIDE_RANGE,
    crowded,
    on_floor,
)
from data_builders.worlds.scenes.scene import (
    CAMERA_AZIMUTH,
    ORIGIN,
    SIZES,
    Camera,
    Scene,
    SceneObject,
    camera,
    dot,
    subtract,
)

T = TypeVar("T")
Point = tuple[float, float]

_POSITIONS = 60  # to try for one object
_ABOVE = (0.4, 0.8)  # distance of an object in the air from the one below it
_ASIDE = 0.05  # distance, along each axis, of two objects, one over the other


class ImpossibleError(ValueError):
    """A sample is impossible: the field, what was expected, what came, what to do, and the request.

    The request is named by its number in the family.
    """


@dataclass(frozen=True)
class Sampler:
    """Random numbers by the path of a field."""

    key: str

    def rng(self, path: str) -> random.Random:
        """Returns the generator of a field."""
        return random.Random(f"{self.key}:{path}")

    def choice(self, path: str, given: T | None, values: Sequence[T]) -> T:
        """Returns the given value, or one of `values`."""
        return self.rng(path).choice(values) if given is None else given

    def uniform(self, path: str, given: float | None, low: float, high: float) -> float:
        """Returns the given number, or one between the two."""
        return self.rng(path).uniform(low, high) if given is None else given


def scene_of(request: SceneRequest) -> Scene:
    """Returns the scene of a complete request."""
    objects = request.objects or []
    placed: dict[int, SceneObject] = {}
    for k in _order([objects]):
        placed[k] = _object(objects[k], placed)
    return Scene(
        tuple(placed[k] for k in range(len(objects))),
        request.floor or "",
        request.background or "",
        CAMERA_AZIMUTH + (request.light or 0.0),
        request.camera.offset(),
    )


def positions(drafts: Sequence[SceneRequest], sampler: Sampler) -> list[SceneRequest]:
    """Returns the requests with the positions of all objects; sampled ones are the same in all.

    Raises:
        ImpossibleError: An object overlaps another, is out of view, or contradicts its relation.
    """
    cells = [list(draft.objects or ()) for draft in drafts]
    views = [camera(draft.camera.offset()) for draft in drafts]
    placed: list[dict[int, SceneObject]] = [{} for _ in drafts]
    for k in _order(cells):
        failures: Counter[tuple[Any, ...]] = Counter()
        for attempt in range(_POSITIONS):
            rng = sampler.rng(f"objects[{k}].position:{attempt}")
            spot = rng.uniform(*SIDE_RANGE), rng.uniform(*DEPTH_RANGE)
            aside = rng.uniform(-_ASIDE, _ASIDE), rng.uniform(-_ASIDE, _ASIDE)
            gap = rng.uniform(*_ABOVE)
            tried: list[ObjectRequest] = []
            try:
                for c, objects in enumerate(cells):
                    request = _tried(objects[k], placed[c], spot, aside, gap)
                    tried.append(request)
                    _check(k, request, placed[c], views[c], objects[k].position is not None)
            except ImpossibleError as error:
                failures[*error.args, len(tried) - 1] += 1
                continue
            # The position is free in every combination of the sweep.
            for c, request in enumerate(tried):
                cells[c][k] = request
                placed[c][k] = _object(request, placed[c])
            break
        else:
            raise ImpossibleError(*failures.most_common(1)[0][0])
    pairs = zip(drafts, cells, strict=True)
    return [draft.model_copy(update={"objects": objects}) for draft, objects in pairs]


def _order(cells: Sequence[Sequence[ObjectRequest]]) -> list[int]:
    """The numbers of the objects, those that a relation names first."""
    order: list[int] = []

    def add(k: int, waiting: tuple[int, ...]) -> None:
        if k in waiting:
            raise ImpossibleError(
                f"objects[{k}].relation", "one order of the objects in all combinations",
                "a circle", "use one request for each relation", 0,
            )  # fmt: skip
        for objects in cells if k not in order else ():
            link = objects[k].relation
            if link is not None:
                add(link[1], (*waiting, k))
        if k not in order:
            order.append(k)

    for k in range(len(cells[0])):
        add(k, ())
    return order


def _object(request: ObjectRequest, placed: dict[int, SceneObject]) -> SceneObject:
    """The object of a complete request; those that its relation names are placed."""
    size = request.size or ""
    base = request.relation[1] if request.relation and request.relation[0] == "on" else None
    obj = SceneObject(
        request.shape or "", request.color or "", request.material or "", request.texture or "",
        size, ORIGIN, SIZES[size], request.rotation or 0.0, base, bool(request.standing),
    )  # fmt: skip
    bottom = request.height or 0.0
    if base is not None:
        bottom = placed[base].top
    x, y, _ = on_floor(obj, *(request.position or (0.0, 0.0))).center
    return obj.at(x, y, bottom)


def _tried(
    request: ObjectRequest, placed: dict[int, SceneObject], spot: Point, aside: Point, gap: float
) -> ObjectRequest:
    """The object with a position, and the height of an object in the air."""
    update: dict[str, Any] = {}
    word, other = request.relation or ("", -1)
    if word in ("on", "above"):
        base = placed[other]
        axes = camera().axes
        x, y = (dot(base.center, axes[name]) for name in ("right", "behind"))
        spot = x + aside[0], y + aside[1]
        if word == "above" and request.height is None:
            update["height"] = base.top + gap
    return request.model_copy(update={"position": request.position or spot, **update})


def _check(
    k: int, request: ObjectRequest, placed: dict[int, SceneObject], view: Camera, fixed: bool
) -> None:
    obj = _object(request, placed)
    name, x, y = f"objects[{k}].position", *(request.position or (0.0, 0.0))
    got = f"[{x:.3g}, {y:.3g}]" if fixed else "no such position"
    if request.relation is not None:
        _check_relation(k, obj, request.relation, placed, view, got)
    if not view.shows(obj):
        raise ImpossibleError(name, "a position in view of the camera", got,
                               "move it towards [0, 0], or the camera away")  # fmt: skip
    clearance = 0.0 if fixed else CLEARANCE
    for j, other in placed.items():
        if j == obj.on:
            continue
        if obj.overlaps(other, clearance):
            raise ImpossibleError(
                name, f"a position free of objects[{j}] ({other.color} {other.shape})", got,
                "move one of the two, or use small or fewer objects",
            )  # fmt: skip
        over = obj.floats_over(other) or other.floats_over(obj)
        if not fixed and not over and crowded(obj, other, view):
            expected = f"a position apart from objects[{j}] in the picture"
            advice = "use small or fewer objects, or give positions"
            raise ImpossibleError(name, expected, got, advice)


def _check_relation(
    k: int, obj: SceneObject, relation: tuple[str, int], placed: dict[int, SceneObject],
    view: Camera, got: str,
) -> None:  # fmt: skip
    word, j = relation
    other, advice = placed[j], "correct the positions, or leave this one out"
    if word == "on":
        if SIZES[obj.size] > SIZES[other.size]:
            expected = f"no larger size than that of objects[{j}]"
            advice = "exchange the two, or make it small"
            raise ImpossibleError(f"objects[{k}].size", expected, obj.size, advice)
        holds = max(abs(obj.center[i] - other.center[i]) for i in (0, 1)) <= 2.0 * _ASIDE
    elif word == "above":
        holds = obj.floats_over(other)
    else:
        holds = clear_direction(subtract(obj.center, other.center), view.axes) == RELATIONS[word]
        advice = "move the objects, or use small or fewer ones"
    if not holds:
        expected = f"a free position in view {word} objects[{j}]"
        raise ImpossibleError(f"objects[{k}].relation", expected, got, advice)
