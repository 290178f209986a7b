"""Pairs of scenes that differ in one thing only: a place, a number or an attribute (EqBen)."""

import random
from dataclasses import dataclass, replace

from data_builders.scenes.captions import INVERSE, clear_relation
from data_builders.scenes.grammar import (
    SIZES,
    Scene,
    SceneObject,
    camera,
    half_height,
    in_view,
    overlap,
    sample_scene,
)
from data_builders.scenes.statements import noun, there, varied
from data_builders.scenes.twins import Twins, TwinSeries

_GAP = 0.15  # least free distance to what a changed object stands beside


@dataclass(frozen=True)
class MovedTwins(TwinSeries):
    """Object 0 is on the other side of object 1; everything else stays where it is."""

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        a, b = scene.objects[:2]
        if not (free(scene, 0) and free(scene, 1)):
            return None
        x, y = (2 * b.center[k] - a.center[k] for k in (0, 1))
        twin = put(scene, replace(a, center=(x, y, a.center[2])))
        name = clear_relation(scene, 0, 1)
        if twin is None or name is None or clear_relation(twin, 0, 1) != INVERSE[name]:
            return None
        return scene, twin


@dataclass(frozen=True)
class CountedTwins(TwinSeries):
    """One of the two scenes lacks the last object of the other; items take turns which."""

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""
        scene = sample_scene(self.spec, rng)
        last = len(scene.objects) - 1
        if last < 1 or any(thing.on == last for thing in scene.objects):
            return None
        fewer = replace(scene, objects=scene.objects[:last])
        return (scene, fewer) if rng.random() < 0.5 else (fewer, scene)

    @staticmethod
    def shape(index: int, first: Scene, second: Scene) -> str | None:
        """Whose number differs in item `index`: a shape's or, in even items, all objects'."""
        most = max(first, second, key=lambda scene: len(scene.objects))
        shape = most.objects[-1].shape
        return None if index % 2 == 0 else shape


@dataclass(frozen=True)
class ChangedTwins(TwinSeries):
    """Object 0 has another colour, material, size or texture, which no other of its shape has."""

    def attempt(self, index: int, rng: random.Random) -> Twins | None:
        """See `ItemSeries`."""
        scene, kind = sample_scene(self.spec, rng), self.attribute(index)
        thing = scene.objects[0]
        others = [value for value in self._values(kind) if value != getattr(thing, kind)]
        twin = self._changed(scene, kind, rng.choice(others)) if others else None
        if twin is None or self.spec.forbidden & {(o.color, o.shape) for o in twin.objects}:
            return None
        before, after = (noun(s.objects[0], [kind]) for s in (scene, twin))
        # Each caption must be false of the other image, other objects included.
        if there(scene, after) is not False or there(twin, before) is not False:
            return None
        return scene, twin

    def attribute(self, index: int) -> str:
        """The attribute that item `index` changes, one of those the world varies."""
        kinds = [kind for kind in varied(self.spec) if len(self._values(kind)) > 1]
        return kinds[index % len(kinds)] if kinds else "color"

    def _values(self, kind: str) -> tuple[str, ...]:
        spec = self.spec
        return {
            "color": spec.colors,
            "material": spec.materials,
            "size": spec.sizes,
            "texture": spec.textures,
        }[kind]

    @staticmethod
    def _changed(scene: Scene, kind: str, value: str) -> Scene | None:
        thing = replace(scene.objects[0], **{kind: value})
        if kind != "size":
            return replace(scene, objects=(thing, *scene.objects[1:]))
        if not free(scene, 0):
            return None
        thing = replace(thing, radius=SIZES[value])
        x, y, _ = thing.center
        return put(scene, replace(thing, center=(x, y, half_height(thing))))


def free(scene: Scene, k: int) -> bool:
    """Tells whether object k neither stands on another nor carries one."""
    return scene.objects[k].on is None and all(thing.on != k for thing in scene.objects)


def put(scene: Scene, thing: SceneObject) -> Scene | None:
    """Returns the scene with another object 0, or None where that does not fit."""
    others = scene.objects[1:]
    if not in_view(thing, camera(scene.jitter)) or any(overlap(thing, o, _GAP) for o in others):
        return None
    return replace(scene, objects=(thing, *others))
