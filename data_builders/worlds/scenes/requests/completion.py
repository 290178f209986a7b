"""What scene requests leave out.

In: requests. Out: complete requests; what was left out is sampled.

Every field has random numbers of its own, a function of the seed and its path. So a field that is
given changes no other, and the combinations of a sweep differ in what it sweeps alone.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from data_builders.worlds.scenes.render import render
from data_builders.worlds.scenes.requests.fields import ObjectRequest, SceneRequest, refusal
from data_builders.worlds.scenes.requests.files import SceneFamily
from data_builders.worlds.scenes.requests.layout import (
    ImpossibleError,
    Sampler,
    positions,
    scene_of,
)
from data_builders.worlds.scenes.sampling import DEFAULT, sample_jitter
from data_builders.worlds.scenes.scene import SUPPORTS, Scene

MIN_EXPOSED = 0.5
_ATTEMPTS = 100  # for the scenes of one request, before it counts as impossible
_OBJECTS = (1, 4)  # in a scene that leaves its objects out
_LIGHT = 75.0  # degrees to either side of the camera
_CHECKED_AT = 48  # pixels a side at which a scene is checked for hidden objects


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
