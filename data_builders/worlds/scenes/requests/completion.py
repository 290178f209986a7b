"""What scene requests leave out.

In: requests. Out: complete requests, and their scenes; what was left out is sampled.

Every field has random numbers of its own, a function of the seed and its path. So a field that is
given changes no other, and the combinations of a sweep differ in what it sweeps alone. Positions
are sampled until nothing overlaps and all relations hold.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from data_builders.phrases import clear_direction
from data_builders.worlds.scenes.render import render
from data_builders.worlds.scenes.requests.fields import (
    RELATIONS,
    ObjectRequest,
    SceneRequest,
    refusal,
)
from data_builders.worlds.scenes.requests.files import SceneFamily
from data_builders.worlds.scenes.sampling import (
    CLEARANCE,
    DEFAULT,
    DEPTH_RANGE,
    SIDE_RANGE,
    crowded,
    on_floor,
    sample_jitter,
)
from data_builders.worlds.scenes.scene import (
    CAMERA_AZIMUTH,
    ORIGIN,
    SIZES,
    SUPPORTS,
    Camera,
    Scene,
    SceneObject,
    camera,
    dot,
    subtract,
)

T = TypeVar("T")
Point = tuple[float, float]

MIN_EXPOSED = 0.5
_ATTEMPTS = 100  # for the scenes of one request, before it counts as impossible
_OBJECTS = (1, 4)  # in a scene that leaves its objects out
_LIGHT = 75.0  # degrees to either side of the camera
_CHECKED_AT = 48  # pixels a side at which a scene is checked for hidden objects
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


def complete(family: SceneFamily, key: str, min_exposed: float = MIN_EXPOSED) -> list[SceneRequest]:
    """Returns a family's requests with everything that they leave out, which is the same in all.

    `key` seeds what is sampled; `min_exposed` of each object must not be hidden by others.

    Raises:
        UserError: Objects overlap, hide each other or are out of view, or a relation does not fit.
    """
    failures: Counter[tuple[Any, ...]] = Counter()
    for attempt in range(_ATTEMPTS):
        sampler = Sampler(f"{key}:{attempt}")
        try:
            drafts = [_attributes(*numbered, sampler) for numbered in enumerate(family.requests)]
            settled = positions(drafts, sampler)
            _check_exposed([scene_of(request) for request in settled], min_exposed)
            return settled
        except ImpossibleError as error:
            failures[error.args] += 1
    # Of many samples the failure that came most often tells best what to change.
    [((field, expected, got, advice, number), _)] = failures.most_common(1)
    swept = ", ".join(f"{name} = {json.dumps(x)}" for name, x in family.values[number].items())
    where = f" (with {swept})" if swept else ""
    raise refusal(f"{family.path}.{field}", expected, f"{got}{where}", advice)


def _attributes(number: int, request: SceneRequest, sampler: Sampler) -> SceneRequest:
    """The request with floor, background, light, camera and the attributes of all objects."""
    given = request.objects
    if given is None:
        given = [ObjectRequest()] * sampler.rng("objects").randint(*_OBJECTS)
    objects = [_with_attributes(k, given, number, sampler) for k in range(len(given))]
    for k, obj in enumerate(objects):
        for j, other in enumerate(objects[:k]):
            stated = all(o.color and o.shape for o in (given[j], given[k]))
            if (obj.color, obj.shape) == (other.color, other.shape) and not stated:
                raise ImpossibleError(
                    f"objects[{k}]", f"another color and shape than those of objects[{j}]",
                    f"{obj.color} {obj.shape}", "leave out or change its color or shape", number,
                )  # fmt: skip
    jitter = request.camera.jitter or sample_jitter(sampler.rng("camera.jitter"))
    return SceneRequest.model_construct(
        floor=sampler.choice("floor", request.floor, DEFAULT.floors),
        background=sampler.choice("background", request.background, DEFAULT.backgrounds),
        light=sampler.uniform("light", request.light, -_LIGHT, _LIGHT),
        camera=request.camera.model_copy(update={"jitter": jitter}),
        objects=objects,
    )


def _with_attributes(
    k: int, given: Sequence[ObjectRequest], number: int, sampler: Sampler
) -> ObjectRequest:
    obj, name = given[k], f"objects[{k}]"
    carries = any(o.relation == ("on", k) for o in given)
    shapes = DEFAULT.shapes
    if carries:
        shapes = SUPPORTS
    elif obj.standing:
        shapes = ("torus",)
    shape = sampler.choice(f"{name}.shape", obj.shape, shapes)
    if carries and shape not in SUPPORTS:
        top = next(j for j, o in enumerate(given) if o.relation == ("on", k))
        raise ImpossibleError(
            f"objects[{top}].relation", f"a flat support ({', '.join(SUPPORTS)})",
            f"a {shape} in {name}", "put it on another object", number,
        )  # fmt: skip
    stands = obj.standing
    if stands is None:
        stands = shape == "torus" and sampler.rng(f"{name}.standing").random() < 0.5
    attributes: dict[str, Any] = {"shape": shape, "standing": stands}
    for kind, values in DEFAULT.attributes().items():
        attributes[kind] = sampler.choice(f"{name}.{kind}", getattr(obj, kind), values)
    attributes["rotation"] = sampler.uniform(f"{name}.rotation", obj.rotation, 0.0, 360.0)
    return obj.model_copy(update=attributes)


def _check_exposed(scenes: Sequence[Scene], min_exposed: float) -> None:
    if min_exposed == 0.0:
        return
    for number, rendered in enumerate(render(scenes, _CHECKED_AT, 1)):
        visible, alone = rendered.visible.tolist(), rendered.unoccluded.tolist()
        for k, obj in enumerate(rendered.scene.objects):
            fraction = visible[k] / alone[k] if alone[k] else 0.0
            if fraction < min_exposed:
                raise ImpossibleError(
                    f"objects[{k}].position", f"{min_exposed:.0%} or more of the {obj.color} "
                    f"{obj.shape} in sight", f"{fraction:.0%}",
                    "move it or what hides it, or lower `min_exposed`", number,
                )  # fmt: skip


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
