"""Pairs and sets of scenes that differ in one respect.

In: a spec and a seed. Out: series of pairs, and of sets.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from data_builders.phrases import INVERSE, both, related, with_article
from data_builders.worlds.scenes.captions import FLOOR_PHRASES, clear_relation, counting
from data_builders.worlds.scenes.compositions import Swap
from data_builders.worlds.scenes.sampling import (
    CLEARANCE,
    WorldSpec,
    on_floor,
    sample_scene,
    sample_twin,
)
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, SIZES, Scene, SceneObject, Vector
from data_builders.worlds.scenes.series import Series
from data_builders.worlds.scenes.statements import Noun, exists, object_count, relation_holds

Pair = tuple[Scene, Scene]

LIGHT_STEP = 3.0  # degrees that the light turns from one frame of a video to the next
_REACH = 3.0  # maximum distance along an axis, in world units, of a moved object from another
_MIDDLE = 0.3  # the middle of two placed objects is so near to that of the view, in world units
_APART = (1.7, 2.1)  # distance of placed objects
_POSITIONS = 20  # positions to try before another scene is sampled


class PairSeries(Series):
    """Scenes 2i and 2i + 1 are item i; its captions are about objects 0 and 1 of both."""

    scenes: ClassVar[int] = 2

    def caption(self, index: int, scene: Scene, pair: Sequence[Scene]) -> str:
        """Returns what tells one scene of item `index` from the other."""
        return both(*first_two(scene))


@dataclass(frozen=True)
class ColaPairs(PairSeries):
    """Cola's multi-object items: `a_1 o_1 + a_2 o_2` and, laid out anew, `a_2 o_1 + a_1 o_2`.

    Neither caption is true of the other image; both images hold the same words.
    """

    swaps: tuple[Swap, ...] = ()

    def swap(self, index: int) -> Swap:
        """Returns the colours and shapes of item `index`; all swaps occur equally often."""
        order = list(self.swaps)
        random.Random(f"{self.seed}:swaps:{index // len(order)}").shuffle(order)
        return order[index % len(order)]

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        swap = self.swap(index)
        colors, shapes = rng.sample(swap.colors, 2), rng.sample(swap.shapes, 2)
        sampled = sample_scene(self.spec, rng)
        if any((o.color, o.shape) in swap.compositions() for o in sampled.objects[2:]):
            return None
        queried = (
            replace(o, color=c, shape=s, standing=s == "torus" and rng.random() < 0.5)
            for o, c, s in zip(sampled.objects[:2], colors, shapes, strict=True)
        )
        # The positions belong to the former shapes; exchanging colours lays the objects out.
        mirror = replace(sampled, objects=(*queried, *sampled.objects[2:]))
        scene = sample_twin(mirror, "color", rng)
        return scene, sample_twin(scene, "color", rng)


class ExchangedPairs(PairSeries):
    """Two objects on the floor; even items exchange their positions, odd items an attribute."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene = sample_scene(self.spec, rng)
        a, b = scene.objects
        if a.shape == b.shape or a.on is not None or b.on is not None:
            return None
        kind = self.attribute(index)
        if kind is None:
            return reversed_on_floor(scene)
        if getattr(a, kind) == getattr(b, kind):
            return None
        exchanged = {(a.color, b.shape), (b.color, a.shape)} & self.spec.forbidden
        if kind == "color" and exchanged:
            return None
        return scene, sample_twin(scene, kind, rng)

    def attribute(self, index: int) -> str | None:
        """Returns the attribute that item `index` exchanges, None where it reverses a relation."""
        kinds = list(self.spec.attributes()) or ["color"]
        return kinds[(index // 2) % len(kinds)] if index % 2 else None


class MovedPairs(PairSeries):
    """Object 0 is on the other side of object 1 (EqBen, Kubric location)."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene = sample_scene(self.spec, rng)
        a, b = scene.objects[:2]
        if not (_unstacked(scene, 0) and _unstacked(scene, 1)):
            return None
        x, y = (2 * b.center[k] - a.center[k] for k in (0, 1))
        twin = _with_first(scene, a.at(x, y))
        name = clear_relation(scene, 0, 1)
        if twin is None or name is None or clear_relation(twin, 0, 1) != INVERSE[name]:
            return None
        return scene, twin

    @override
    def caption(self, index: int, scene: Scene, pair: Sequence[Scene]) -> str:
        first, second = first_two(scene)
        return related(first, clear_relation(scene, 0, 1) or "", second)


class CountedPairs(PairSeries):
    """One scene lacks the last object of the other; which one is random (EqBen, Kubric count)."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene = sample_scene(self.spec, rng)
        last = len(scene.objects) - 1
        if last < 1 or any(obj.on == last for obj in scene.objects):
            return None
        fewer = replace(scene, objects=scene.objects[:last])
        return (scene, fewer) if rng.random() < 0.5 else (fewer, scene)

    @override
    def caption(self, index: int, scene: Scene, pair: Sequence[Scene]) -> str:
        # Odd items count one shape, even ones all objects.
        larger = max(pair, key=lambda shown: len(shown.objects))
        shape = larger.objects[-1].shape if index % 2 else None
        return counting(object_count(scene, shape), shape)


class ChangedPairs(PairSeries):
    """Object 0 has another colour, material, size or texture (EqBen, Kubric attribute)."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene, kind = sample_scene(self.spec, rng), self.attribute(index)
        twin = _recast(scene, kind, self.spec.attributes().get(kind, ()), rng)
        return _distinguished(scene, twin, kind, self.spec)

    def attribute(self, index: int) -> str:
        """Returns the attribute that item `index` changes."""
        kinds = list(self.spec.attributes()) or ["color"]
        return kinds[index % len(kinds)]

    @override
    def caption(self, index: int, scene: Scene, pair: Sequence[Scene]) -> str:
        noun = Noun.of(scene.objects[0], [self.attribute(index)])
        return f"a photo of {with_article(noun)}"


# EqBen's parts from an engine, Kubric, by the names of its files.
ENGINE: Mapping[str, type[PairSeries]] = {
    "loc": MovedPairs,
    "cnt": CountedPairs,
    "attr": ChangedPairs,
}


class ActedPairs(PairSeries):
    """Object 0 has moved so that two relations to object 1 change (EqBen, Action Genome)."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene = sample_scene(self.spec, rng)
        a, b = scene.objects[:2]
        before = clear_relation(scene, 0, 1)
        if before is None or not _unstacked(scene, 0):
            return None
        for _ in range(_POSITIONS):
            x, y = (b.center[k] + rng.uniform(-_REACH, _REACH) for k in (0, 1))
            twin = _with_first(scene, a.at(x, y))
            after = clear_relation(twin, 0, 1) if twin else None
            if twin is None or after is None or after in (before, INVERSE[before]):
                continue
            # Each caption must be false of the other image, further objects included.
            first, second = Noun.of(a), Noun.of(b)
            if (
                relation_holds(scene, first, after, second) is False
                and relation_holds(twin, first, before, second) is False
            ):
                return scene, _next_frame(twin)
        return None


class StepPairs(PairSeries):
    """An object of another shape and colour has replaced object 0 (EqBen, YouCook2)."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene = sample_scene(self.spec, rng)
        obj = scene.objects[0]
        others = [(c, s) for c, s in self.spec.compositions() if c != obj.color and s != obj.shape]
        if not _unstacked(scene, 0) or not others:
            return None
        color, shape = rng.choice(others)
        other = replace(obj, color=color, shape=shape, standing=False)
        twin = _with_first(scene, other.at(*obj.center[:2]))
        if twin is None:
            return None
        before, after = first_two(scene), first_two(twin)
        if exists(scene, *after) is not False or exists(twin, *before) is not False:
            return None
        return scene, _next_frame(twin)


class EditedPairs(PairSeries):
    """Object 0 has another shape or colour, or the floor is another one (EqBen, SD edits)."""

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        scene = sample_scene(self.spec, rng)
        kind = self.edit(index)
        if kind == "floor":
            floors = [floor for floor in self.spec.floors if floor != scene.floor]
            return scene, replace(scene, floor=rng.choice(floors))
        values = self.spec.colors if kind == "color" else self.spec.shapes
        return _distinguished(scene, _recast(scene, kind, values, rng), "color", self.spec)

    def edit(self, index: int) -> str:
        """Returns what item `index` changes: shape, floor (if there are several) or colour."""
        kinds = ("shape", "floor", "color") if len(self.spec.floors) > 1 else ("shape", "color")
        return kinds[index % len(kinds)]

    @override
    def caption(self, index: int, scene: Scene, pair: Sequence[Scene]) -> str:
        noun = Noun.of(scene.objects[0])
        return f"a photo of {with_article(noun)} {FLOOR_PHRASES[scene.floor]}"


class PlacedSets(Series):
    """Object 0 left, right, in front and behind of object 1, and nothing else (What'sUp, part B).

    `spec` has scenes of two objects, none of them on the other.
    """

    scenes: ClassVar[int] = 4

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        scene = sample_scene(self.spec, rng)
        first, second = scene.objects
        side, back = rng.uniform(-_MIDDLE, _MIDDLE), rng.uniform(-_MIDDLE, _MIDDLE)
        placed = []
        for name in GROUND_RELATIONS:
            axis = scene.view.axes[name]
            apart = rng.uniform(*_APART)
            # On either side of the middle: beside each other they fill the width of the view.
            objects = (
                _moved(on_floor(first, side, back), axis, apart / 2),
                _moved(on_floor(second, side, back), axis, -apart / 2),
            )
            shown = replace(scene, objects=objects)
            in_view = all(map(scene.view.shows, objects))
            if not in_view or objects[0].overlaps(objects[1], CLEARANCE):
                return None
            if clear_relation(shown, 0, 1) != name:
                return None
            placed.append(shown)
        return tuple(placed)


def reversed_on_floor(scene: Scene) -> Pair | None:
    """The scene and one whose two objects exchanged positions, or None if no relation is clear."""
    a, b = scene.objects
    moved = a.at(*b.center[:2]), b.at(*a.center[:2])
    clear = clear_relation(scene, 0, 1) in GROUND_RELATIONS
    fits = clear and all(map(scene.view.shows, moved))
    return (scene, replace(scene, objects=moved)) if fits else None


def first_two(scene: Scene) -> tuple[Noun, Noun]:
    """Returns objects 0 and 1 by colour and shape."""
    return Noun.of(scene.objects[0]), Noun.of(scene.objects[1])


def _recast(scene: Scene, kind: str, values: Sequence[str], rng: random.Random) -> Scene | None:
    """The scene with another of the values for object 0; None if there is none or no room."""
    obj, *others = scene.objects
    different = [value for value in values if value != getattr(obj, kind)]
    if not different:
        return None
    changed = replace(obj, **{kind: rng.choice(different)})
    if kind not in ("shape", "size"):
        return replace(scene, objects=(changed, *others))
    if kind == "shape":
        changed = replace(changed, standing=False)
    fitting = replace(changed, radius=SIZES[changed.size]).at(*obj.center[:2])
    return _with_first(scene, fitting) if _unstacked(scene, 0) else None


def _distinguished(scene: Scene, twin: Scene | None, kind: str, spec: WorldSpec) -> Pair | None:
    """The pair, where the noun of either object 0 is false of the whole other scene."""
    if twin is None or (twin.objects[0].color, twin.objects[0].shape) in spec.forbidden:
        return None
    before, after = (Noun.of(s.objects[0], [kind]) for s in (scene, twin))
    return (scene, twin) if after.absent_from(scene) and before.absent_from(twin) else None


def _unstacked(scene: Scene, k: int) -> bool:
    return scene.objects[k].on is None and all(obj.on != k for obj in scene.objects)


def _with_first(scene: Scene, obj: SceneObject) -> Scene | None:
    others = scene.objects[1:]
    if not scene.view.shows(obj) or any(obj.overlaps(o, CLEARANCE) for o in others):
        return None
    return replace(scene, objects=(obj, *others))


def _moved(obj: SceneObject, axis: Vector, distance: float) -> SceneObject:
    x, y, _ = obj.center
    return obj.at(x + distance * axis[0], y + distance * axis[1])


def _next_frame(scene: Scene) -> Scene:
    return replace(scene, light_azimuth=scene.light_azimuth + LIGHT_STEP)
