"""Random scenes.

In: a `WorldSpec` and a random generator. Out: scenes, and their relations.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from data_builders.worlds.scenes.scene import (
    BACKGROUNDS,
    CAMERA_AZIMUTH,
    COLORS,
    FLOORS,
    FOCAL,
    GROUND_RELATIONS,
    MATERIALS,
    MAX_OBJECTS,
    ORIGIN,
    SHAPES,
    SIZES,
    SUPPORTS,
    TEXTURES,
    Camera,
    Scene,
    SceneObject,
    Vector,
    camera,
    camera_offset,
    dot,
    subtract,
)
from vlmtune.errors import UserError

Composition = tuple[str, str]  # color, shape
CLEARANCE = 0.15  # minimum distance between two bounding circles
_SEPARATION = 0.6  # minimum projected distance of two objects, in units of their summed radii
_RELATION_MARGIN = 0.2  # minimum offset of a relation in the scene graph, as CLEVR's
_CLEVR_OBJECTS = 10  # with CLEVR's occlusion
# Of CLEVR's generator: the minimum distance of two centres along each ground axis, the clearance,
# the positions from the origin, and the visible fraction (200 pixels of 320 x 240).
_AXIS_MARGIN, _CLEVR_CLEARANCE, _CLEVR_RANGE = 0.4, 0.25, (-3.0, 3.0)
_CLEVR_VISIBLE = 200 / (320 * 240)
_CLEVR_TRIES = 300  # of the last of ten objects one in a hundred may fit
_CLEVR_DISTANCE = 28.0  # of the camera, which has all of these positions in view
SIDE_RANGE, DEPTH_RANGE = (-2.4, 2.4), (-2.6, 3.2)  # of positions, from the origin


@dataclass(frozen=True)
class WorldSpec:
    """Which scenes may occur; no two objects of a scene share colour and shape.

    `forbidden` compositions never occur, `stack_probability` is that of a small object on a free
    support, `min_visible` the fraction of pixels, `min_exposed` of a silhouette, that must show.

    `clevr` scenes follow CLEVR's generator: up to ten objects that may share colour and
    shape, of which any two are 0.4 apart both to the side and in depth, seen from farther away.
    """

    min_objects: int = 1
    max_objects: int = 6
    shapes: tuple[str, ...] = SHAPES
    colors: tuple[str, ...] = tuple(COLORS)
    materials: tuple[str, ...] = MATERIALS
    textures: tuple[str, ...] = TEXTURES
    sizes: tuple[str, ...] = tuple(SIZES)
    floors: tuple[str, ...] = tuple(FLOORS)
    backgrounds: tuple[str, ...] = tuple(BACKGROUNDS)
    forbidden: frozenset[Composition] = frozenset()
    stack_probability: float = 0.0
    min_visible: float = 0.006
    min_exposed: float = 0.5
    clevr: bool = False

    def __post_init__(self) -> None:
        most = _CLEVR_OBJECTS if self.clevr else MAX_OBJECTS
        if not 1 <= self.min_objects <= self.max_objects <= most:
            raise UserError(
                f"min_objects, max_objects: expected 1 <= min <= max <= {most}, got "
                f"{self.min_objects}, {self.max_objects}; choose counts in that range"
            )
        needed = 1 if self.clevr else self.max_objects
        if len(self.compositions()) < needed:
            raise UserError(
                f"forbidden: expected at least {needed} allowed (color, shape) pairs, "
                f"got {len(self.compositions())}; forbid fewer, or lower max_objects"
            )

    def as_clevr(self) -> "WorldSpec":
        """Returns the spec of scenes as CLEVR's: 3 to 10 objects, some of them nearly hidden."""
        return replace(self, clevr=True, min_objects=3, max_objects=_CLEVR_OBJECTS,
                       min_visible=_CLEVR_VISIBLE, min_exposed=0.0)  # fmt: skip

    def at_least(self, count: int) -> "WorldSpec":
        """Returns the spec of scenes with so many objects or more."""
        low, high = max(count, self.min_objects), max(count, self.max_objects)
        return replace(self, min_objects=low, max_objects=high)

    def compositions(self) -> tuple[Composition, ...]:
        """Returns the allowed (color, shape) pairs, shape by shape."""
        return tuple(
            (c, s) for s in self.shapes for c in self.colors if (c, s) not in self.forbidden
        )

    def attributes(self) -> dict[str, tuple[str, ...]]:
        """Returns the values of each attribute that has more than one."""
        values = {"color": self.colors, "material": self.materials, "size": self.sizes,
                  "texture": self.textures}  # fmt: skip
        return {kind: names for kind, names in values.items() if len(names) > 1}


DEFAULT = WorldSpec()


def cogent(condition: str) -> frozenset[Composition]:
    """Returns the (color, shape) pairs that CLEVR-CoGenT forbids in condition "A" or "B".

    In A cubes are gray, blue, brown or yellow, cylinders the other colours; B is the reverse.
    """
    first, second = ("gray", "blue", "brown", "yellow"), ("red", "green", "purple", "cyan")
    cube, cylinder = {"A": (second, first), "B": (first, second)}[condition]
    return frozenset([(c, "cube") for c in cube] + [(c, "cylinder") for c in cylinder])


def crowded(a: SceneObject, b: SceneObject, view: Camera) -> bool:
    """Tells whether two objects are close to each other in the picture."""
    ua, va, da = view.project(a.center)
    ub, vb, db = view.project(b.center)
    return math.hypot(ua - ub, va - vb) < _SEPARATION * FOCAL * (a.radius / da + b.radius / db)


def level(a: SceneObject, b: SceneObject, view: Camera) -> bool:
    """Tells whether two objects are about equally far to the side, or equally far behind."""
    offset = subtract(a.center, b.center)
    return any(abs(dot(offset, view.axes[name])) < _AXIS_MARGIN for name in ("right", "behind"))


def _supports(base: SceneObject, top: SceneObject) -> bool:
    return base.shape in SUPPORTS and base.size == "large" and top.size == "small"


class NoRoomError(UserError):
    """Objects that found no place in the view; others of the same world may."""


@dataclass(frozen=True)
class _Room:
    """Where objects may stand: from the origin to the right and behind it, and how far apart."""

    view: Camera
    side: tuple[float, float]
    depth: tuple[float, float]
    clearance: float  # between two bounding circles
    close: Callable[[SceneObject, SceneObject, Camera], bool]  # in another way
    tries: int = 30  # positions of an object before all are placed again

    def fits(self, obj: SceneObject, others: Sequence[SceneObject]) -> bool:
        """Tells whether the object is in view and far enough from the others."""
        return self.view.shows(obj) and not any(
            obj.overlaps(other, self.clearance) or self.close(obj, other, self.view)
            for other in others
        )


def _sample_position(
    placed: Mapping[int, SceneObject], obj: SceneObject, room: _Room, rng: random.Random
) -> SceneObject:
    if obj.on is not None:
        base = placed[obj.on]
        x, y = (base.center[k] + rng.uniform(-0.05, 0.05) for k in (0, 1))
        return obj.at(x, y, base.top)
    side, back = rng.uniform(*room.side), rng.uniform(*room.depth)
    return on_floor(obj, side, back)


def on_floor(obj: SceneObject, right: float, behind: float) -> SceneObject:
    """Returns the object on the floor, so far to the right of and behind the origin."""
    axes = camera().axes
    x, y = (right * axes["right"][k] + behind * axes["behind"][k] for k in (0, 1))
    return obj.at(x, y)


def _try_layout(
    objects: Sequence[SceneObject], room: _Room, rng: random.Random
) -> tuple[SceneObject, ...] | None:
    placed: dict[int, SceneObject] = {}
    for index in sorted(range(len(objects)), key=lambda k: objects[k].on is not None):
        for _ in range(room.tries):
            candidate = _sample_position(placed, objects[index], room, rng)
            others = [other for k, other in placed.items() if k != candidate.on]
            if room.fits(candidate, others):
                placed[index] = candidate
                break
        else:
            return None
    return tuple(placed[k] for k in range(len(objects)))


def _layout(
    objects: Sequence[SceneObject], jitter: Vector, rng: random.Random, clevr: bool = False
) -> tuple[SceneObject, ...]:
    view = camera(jitter)
    room = _Room(view, SIDE_RANGE, DEPTH_RANGE, CLEARANCE, crowded)
    if clevr:
        room = _Room(view, _CLEVR_RANGE, _CLEVR_RANGE, _CLEVR_CLEARANCE, level, _CLEVR_TRIES)
    for _ in range(500):
        placed = _try_layout(objects, room, rng)
        if placed is not None:
            return placed
    raise NoRoomError(
        f"objects: expected a set that fits into the view, got {len(objects)} that did not in 500 "
        "layouts; lower max_objects or allow the size 'small'"
    )


def _sample_objects(spec: WorldSpec, rng: random.Random) -> list[SceneObject]:
    free = list(spec.compositions())
    objects: list[SceneObject] = []
    for _ in range(rng.randint(spec.min_objects, spec.max_objects)):
        # Shape first, so that forbidding colours of a shape does not make the shape rarer.
        left = {shape for _, shape in free}
        shape = rng.choice([shape for shape in spec.shapes if shape in left])
        composition = rng.choice([pair for pair in free if pair[1] == shape])
        if not spec.clevr:
            free.remove(composition)
        size = rng.choice(spec.sizes)
        objects.append(SceneObject(
            shape=shape, color=composition[0], material=rng.choice(spec.materials),
            texture=rng.choice(spec.textures), size=size, center=ORIGIN,
            radius=SIZES[size], rotation=rng.uniform(0.0, 360.0),
            standing=rng.random() < 0.5 and shape == "torus",
        ))  # fmt: skip
    return objects


def _stack(
    objects: Sequence[SceneObject], probability: float, rng: random.Random
) -> list[SceneObject]:
    stacked, taken = list(objects), set[int]()
    for index, top in enumerate(objects):
        bases = [k for k, b in enumerate(objects) if _supports(b, top) and k not in taken]
        if bases and rng.random() < probability:
            base = rng.choice(bases)
            taken.add(base)
            stacked[index] = replace(top, on=base)
    return stacked


def sample_jitter(rng: random.Random) -> Vector:
    """Returns a random offset of the camera."""
    return rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4)


def sample_scene(spec: WorldSpec, rng: random.Random) -> Scene:
    """Samples attributes, then positions by rejection until nothing intersects.

    Bounds projected distances; `series.Series` samples again where too little is visible.
    """
    objects = _stack(_sample_objects(spec, rng), spec.stack_probability, rng)
    jitter = sample_jitter(rng)
    if spec.clevr:
        x, y, z = camera_offset(distance=_CLEVR_DISTANCE)
        jitter = jitter[0] + x, jitter[1] + y, jitter[2] + z
    floor, background = rng.choice(spec.floors), rng.choice(spec.backgrounds)
    azimuth = CAMERA_AZIMUTH + rng.uniform(-75.0, 75.0)
    placed = _layout(objects, jitter, rng, spec.clevr)
    return Scene(placed, floor, background, azimuth, jitter)


def _reseat(objects: Sequence[SceneObject]) -> list[SceneObject]:
    """The objects at their new heights, off supports that can no longer carry them."""
    seated = []
    for obj in objects:
        if obj.on is not None and not _supports(objects[obj.on], obj):
            obj = replace(obj, on=None)
        bottom = 0.0
        if obj.on is not None:
            bottom = 2.0 * objects[obj.on].half_height
        seated.append(obj.at(*obj.center[:2], bottom))
    return seated


def sample_twin(scene: Scene, attribute: str, rng: random.Random) -> Scene:
    """Returns the scene laid out anew, with an attribute of objects 0 and 1 exchanged.

    Any attribute but the shape: only some shapes can stand.
    """
    a, b, *others = scene.objects
    exchanged = []
    for target, source in ((a, b), (b, a)):
        obj = replace(target, **{attribute: getattr(source, attribute)})
        exchanged.append(replace(obj, radius=SIZES[obj.size]))
    objects = _layout(_reseat([*exchanged, *others]), scene.jitter, rng)
    return replace(scene, objects=objects)


def relations(scene: Scene) -> dict[str, list[list[int]]]:
    """Returns the scene graph's edges: entry [r][i] lists the objects j that are `r` of i.

    (c_j - c_i) . direction_r > 0.2; on: j stands on i; above: it does or floats over i;
    under, below: the reverse.
    """
    axes, objects = scene.view.axes, scene.objects
    names = (*GROUND_RELATIONS, "on", "above", "under", "below")
    table: dict[str, list[list[int]]] = {}
    for name in names:
        table[name] = [[] for _ in objects]
    for i, a in enumerate(objects):
        for j, b in enumerate(objects):
            offset = subtract(b.center, a.center)
            for name in GROUND_RELATIONS:
                if dot(offset, axes[name]) > _RELATION_MARGIN:
                    table[name][i].append(j)
            if b.on == i:
                table["on"][i].append(j)
                table["under"][j].append(i)
            if b.on == i or b.floats_over(a):
                table["above"][i].append(j)
                table["below"][j].append(i)
    return table
