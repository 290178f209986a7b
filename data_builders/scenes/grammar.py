"""Scene grammar: what may stand in a scene, where, and how objects relate.

The vocabulary and the camera of `world` are exported from here as well. Nothing here draws pixels,
so the module needs the standard library only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from data_builders.scenes.constants import (
    ATTRIBUTES,
    BACKGROUNDS,
    CAMERA_AZIMUTH,
    CAMERA_TARGET,
    COLORS,
    EXTENTS,
    FLOOR_EDGE,
    FLOORS,
    FOCAL,
    LIGHT_ELEVATION,
    MATERIALS,
    MAX_OBJECTS,
    RELATION_MARGIN,
    RELATIONS,
    SHAPES,
    SIZES,
    SUPPORTS,
    TEXTURES,
    Camera,
    Rgb,
    Scene,
    SceneObject,
    Vector,
    bounding_radius,
    camera,
    directions,
    dot,
    ground_radius,
    half_height,
    in_view,
    overlap,
    subtract,
)

__all__ = [
    "ATTRIBUTES",
    "BACKGROUNDS",
    "CAMERA_AZIMUTH",
    "CAMERA_TARGET",
    "COLORS",
    "EXTENTS",
    "FLOORS",
    "FLOOR_EDGE",
    "FOCAL",
    "LIGHT_ELEVATION",
    "MATERIALS",
    "MAX_OBJECTS",
    "RELATIONS",
    "RELATION_MARGIN",
    "SHAPES",
    "SIZES",
    "SUPPORTS",
    "TEXTURES",
    "Camera",
    "Rgb",
    "Scene",
    "SceneObject",
    "Vector",
    "WorldSpec",
    "bounding_radius",
    "camera",
    "cogent",
    "directions",
    "ground_radius",
    "half_height",
    "in_view",
    "overlap",
    "relations",
    "sample_scene",
    "sample_twin",
    "subtract",
]

_GAP = 0.15  # least free distance between two bounding circles
_CLEAR = 0.6  # least projected distance of two objects, in units of their summed radii
_DEPTH_RANGE = (-2.6, 3.2)


def _check_subset(name: str, given: Sequence[str], allowed: Collection[str]) -> None:
    if not given or len(set(given)) != len(given) or not set(given) <= set(allowed):
        raise ValueError(
            f"{name}: expected distinct names out of {sorted(allowed)}, got {tuple(given)}; "
            "remove what is repeated or unknown and keep at least one"
        )


@dataclass(frozen=True)
class WorldSpec:
    """What `sample_scene` may draw.

    Attributes:
        forbidden: (color, shape) pairs that are never drawn.
        stack_probability: chance that a small object with a free support stands on it.
        distinct: "pairs" when no two objects share both colour and shape; None leaves it free.
        min_visible: least share of the image's pixels that shows each object.
        min_exposed: least share of an object's own silhouette that nothing hides.
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
    forbidden: frozenset[tuple[str, str]] = frozenset()
    stack_probability: float = 0.0
    distinct: str | None = "pairs"
    min_visible: float = 0.006
    min_exposed: float = 0.5

    def __post_init__(self) -> None:
        """Reject what cannot be sampled."""
        if not 1 <= self.min_objects <= self.max_objects <= MAX_OBJECTS:
            raise ValueError(
                f"min_objects, max_objects: expected 1 <= min <= max <= {MAX_OBJECTS}, got "
                f"{self.min_objects}, {self.max_objects}; choose counts in that range"
            )
        for name, allowed in (
            ("shapes", SHAPES), ("colors", COLORS), ("materials", MATERIALS),
            ("textures", TEXTURES), ("sizes", SIZES), ("floors", FLOORS),
            ("backgrounds", BACKGROUNDS),
        ):  # fmt: skip
            _check_subset(name, getattr(self, name), allowed)
        for name in ("stack_probability", "min_visible", "min_exposed"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}: expected 0 to 1, got {value}; give a fraction")
        if self.distinct not in ("pairs", None):
            raise ValueError(
                f"distinct: expected 'pairs' or None, got {self.distinct!r}; choose one of them"
            )
        needed = self.max_objects if self.distinct else 1
        if len(self.pairs()) < needed:
            raise ValueError(
                f"forbidden: expected at least {needed} allowed (color, shape) pairs, got "
                f"{len(self.pairs())}; forbid fewer, or lower max_objects"
            )

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the allowed (color, shape) pairs, shape by shape."""
        return tuple(
            (c, s) for s in self.shapes for c in self.colors if (c, s) not in self.forbidden
        )


def cogent(condition: str) -> frozenset[tuple[str, str]]:
    """Return CLEVR-CoGenT's forbidden (color, shape) pairs for condition "A" or "B".

    In A cubes are gray, blue, brown or yellow and cylinders red, green, purple or cyan; B
    exchanges the two palettes. Other shapes take any colour.
    """
    if condition not in ("A", "B"):
        raise ValueError(f"condition: expected 'A' or 'B', got {condition!r}; choose one of them")
    first, second = ("gray", "blue", "brown", "yellow"), ("red", "green", "purple", "cyan")
    cube, cylinder = (second, first) if condition == "A" else (first, second)
    return frozenset([(c, "cube") for c in cube] + [(c, "cylinder") for c in cylinder])


def _crowds(a: SceneObject, b: SceneObject, view: Camera) -> bool:
    ua, va, da = view.project(a.center)
    ub, vb, db = view.project(b.center)
    return math.hypot(ua - ub, va - vb) < _CLEAR * FOCAL * (a.radius / da + b.radius / db)


def _supports(base: SceneObject, top: SceneObject) -> bool:
    return base.shape in SUPPORTS and base.size == "large" and top.size == "small"


def _draw_spot(placed: Sequence[SceneObject | None], thing: SceneObject,
               rng: random.Random) -> SceneObject:  # fmt: skip
    axes = directions()
    base = None if thing.on is None else placed[thing.on]
    if base is not None:
        x, y = base.center[0] + rng.uniform(-0.05, 0.05), base.center[1] + rng.uniform(-0.05, 0.05)
        return replace(
            thing, center=(x, y, base.center[2] + half_height(base) + half_height(thing))
        )
    side, back = rng.uniform(-2.4, 2.4), rng.uniform(*_DEPTH_RANGE)
    x, y = (side * axes["right"][k] + back * axes["behind"][k] for k in (0, 1))
    return replace(thing, center=(x, y, half_height(thing)))


def _try_layout(things: Sequence[SceneObject], view: Camera,
                rng: random.Random) -> tuple[SceneObject, ...] | None:  # fmt: skip
    placed: list[SceneObject | None] = [None] * len(things)
    for index in sorted(range(len(things)), key=lambda k: things[k].on is not None):
        for _ in range(30):
            spot = _draw_spot(placed, things[index], rng)
            others = [p for k, p in enumerate(placed) if p is not None and k != spot.on]
            if in_view(spot, view) and not any(
                overlap(spot, p, _GAP) or _crowds(spot, p, view) for p in others
            ):
                placed[index] = spot
                break
        else:
            return None
    return tuple(p for p in placed if p is not None)


def _layout(things: Sequence[SceneObject], jitter: Vector,
            rng: random.Random) -> tuple[SceneObject, ...]:  # fmt: skip
    view = camera(jitter)
    for _ in range(500):
        placed = _try_layout(things, view, rng)
        if placed is not None:
            return placed
    raise ValueError(
        f"objects: expected a set that fits into the view, got {len(things)} that did not in 500 "
        "layouts; lower max_objects or allow the size 'small'"
    )


def _draw_objects(spec: WorldSpec, rng: random.Random) -> list[SceneObject]:
    free = list(spec.pairs())
    things: list[SceneObject] = []
    for _ in range(rng.randint(spec.min_objects, spec.max_objects)):
        # Shape first, so that forbidding colours of a shape does not make the shape rarer.
        shape = rng.choice([s for s in spec.shapes if any(p[1] == s for p in free)])
        pair = rng.choice([p for p in free if p[1] == shape])
        if spec.distinct:
            free.remove(pair)
        size = rng.choice(spec.sizes)
        things.append(SceneObject(
            shape=shape, color=pair[0], material=rng.choice(spec.materials),
            texture=rng.choice(spec.textures), size=size, center=(0.0, 0.0, 0.0),
            radius=SIZES[size], rotation=rng.uniform(0.0, 360.0),
            standing=rng.random() < 0.5 and shape == "torus",
        ))  # fmt: skip
    return things


def _stack(things: Sequence[SceneObject], chance: float, rng: random.Random) -> list[SceneObject]:
    stacked, taken = list(things), set[int]()
    for index, top in enumerate(things):
        bases = [k for k, b in enumerate(things) if _supports(b, top) and k not in taken]
        if bases and rng.random() < chance:
            base = rng.choice(bases)
            taken.add(base)
            stacked[index] = replace(top, on=base)
    return stacked


def sample_scene(spec: WorldSpec, rng: random.Random) -> Scene:
    """Draw a scene: attributes, then positions by rejection until nothing intersects.

    All randomness comes from `rng`. Occlusion is limited by a bound on projected distances only;
    the exact visible share is known after rendering (see `sample.make_scenes`).
    """
    things = _stack(_draw_objects(spec, rng), spec.stack_probability, rng)
    jitter = (rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4), rng.uniform(-0.4, 0.4))
    floor, background = rng.choice(spec.floors), rng.choice(spec.backgrounds)
    azimuth = CAMERA_AZIMUTH + rng.uniform(-75.0, 75.0)
    return Scene(_layout(things, jitter, rng), floor, background, azimuth, jitter)


def _reseat(things: Sequence[SceneObject]) -> list[SceneObject]:
    """Drop supports that no longer carry, and put every object at its new height."""
    seated = list(things)
    for index, thing in enumerate(things):
        base = None if thing.on is None else things[thing.on]
        kept = base if base is not None and _supports(base, thing) else None
        z = half_height(thing) + (0.0 if kept is None else 2.0 * half_height(kept))
        seated[index] = replace(
            thing,
            on=None if kept is None else thing.on,
            center=(thing.center[0], thing.center[1], z),
        )
    return seated


def sample_twin(scene: Scene, i: int, j: int, attribute: str = "color", *, rng: random.Random,
                relayout: bool = True) -> Scene:  # fmt: skip
    """Return the scene with one attribute of objects i and j exchanged.

    Args:
        scene: the scene to vary.
        i: index of the first object.
        j: index of the second object.
        attribute: one of ATTRIBUTES.
        rng: source of the new positions.
        relayout: draw new positions; False keeps them (heights follow the new shapes).
    """
    count = len(scene.objects)
    if attribute not in ATTRIBUTES or i == j or not (0 <= i < count and 0 <= j < count):
        raise ValueError(
            f"attribute, i, j: expected one of {ATTRIBUTES} and two different indices below "
            f"{count}, got {attribute!r}, {i}, {j}; choose an attribute and two objects"
        )
    a, b = scene.objects[i], scene.objects[j]
    if getattr(a, attribute) == getattr(b, attribute):
        raise ValueError(
            f"i, j: expected objects of different {attribute}, got {getattr(a, attribute)!r} "
            "twice; choose another pair"
        )
    things = list(scene.objects)
    for index, target, source in ((i, a, b), (j, b, a)):
        changed = replace(target, **{attribute: getattr(source, attribute)})
        flat_only = changed.shape != "torus"
        things[index] = replace(
            changed, radius=SIZES[changed.size], standing=changed.standing and not flat_only
        )
    seated = _reseat(things)
    if relayout:
        return replace(scene, objects=_layout(seated, scene.jitter, rng))
    if any(overlap(seated[m], seated[n]) for m in range(count) for n in range(m)):
        raise ValueError(
            f"relayout: expected positions that still fit, got objects that intersect after "
            f"exchanging {attribute}; pass relayout=True"
        )
    return replace(scene, objects=tuple(seated))


def relations(scene: Scene) -> dict[str, list[list[int]]]:
    """Return the scene graph's edges: entry [r][i] lists the objects j that are `r` of i.

    For left, right, front and behind, j qualifies when (c_j - c_i) . direction_r exceeds
    RELATION_MARGIN; above and on hold for the object standing on i, below for i's support.
    """
    axes, things = directions(scene.jitter), scene.objects
    table: dict[str, list[list[int]]] = {}
    for name in ("left", "right", "front", "behind"):
        table[name] = [
            [
                j
                for j, b in enumerate(things)
                if dot(subtract(b.center, a.center), axes[name]) > RELATION_MARGIN
            ]
            for a in things
        ]
    table["above"] = [[j for j, b in enumerate(things) if b.on == i] for i in range(len(things))]
    table["on"] = [list(row) for row in table["above"]]
    table["below"] = [[] if a.on is None else [a.on] for a in things]
    return table
