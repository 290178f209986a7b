"""PUG:AR4T's scenes (Bordes et al. 2023, appendix B.5) with one word for a relation.

In: a spec and a seed. Out: pairs of scenes, and scenes of one object, with their captions.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TypeVar

from typing_extensions import override

from data_builders.phrases import INVERSE, PHRASES
from data_builders.worlds.scenes.captions import FLOOR_PHRASES, clear_relation
from data_builders.worlds.scenes.pairs import Pair, PairSeries, reversed_on_floor
from data_builders.worlds.scenes.sampling import WorldSpec, on_floor, sample_scene, sample_twin
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, SUPPORTS, Scene, SceneObject
from data_builders.worlds.scenes.series import Series
from data_builders.worlds.scenes.statements import Noun, stated_attributes

T = TypeVar("T")
_FLAT = (*SUPPORTS, "torus")  # shapes that can carry and be carried; a torus lies flat
# Distance of a floating object from the one below, in units of their summed radii on the ground.
# From 0.58 on the camera, 30 degrees above the horizon, sees floor between two cylinders.
_GAP = (0.6, 0.9)
_ASIDE = 0.05  # maximum distance of two objects, one over the other, along each ground axis
_POSITIONS = 20  # positions to try before another scene is sampled
# Of the scenes with two objects and a relation, PUG renders 3,100 a background; of those with one
# object and a relation, 930.
_UNARY = 0.3


@dataclass(frozen=True)
class SceneCaptions:
    """What the csv states of a scene.

    `alternative` names the objects in reverse order; it is "" of one object. `kinds` holds the kind
    of attribute that the captions state of each object, if they do.
    """

    relation: str
    caption: str
    alternative: str = ""
    kinds: tuple[str, ...] = ()


def attributed(scene: Scene, kinds: Sequence[str], tail: str) -> SceneCaptions:
    """Returns captions that state an attribute of each of two objects."""
    nouns = [f"{getattr(o, k)} {o.shape}" for o, k in zip(scene.objects, kinds, strict=True)]
    first, second = nouns
    caption, alternative = f"{first} and {second} {tail}", f"{second} and {first} {tail}"
    return SceneCaptions("and", caption, alternative, tuple(kinds))


def related(scene: Scene, word: str, inverse: str, tail: str) -> SceneCaptions:
    """Returns captions that state a relation of two objects, and the inverse of it."""
    first, second = (obj.shape for obj in scene.objects)
    caption = f"{first} {word} {second} {tail}"
    return SceneCaptions(word, caption, f"{second} {inverse} {first} {tail}")


def alone(scene: Scene, kind: str | None, relation: str, tail: str) -> SceneCaptions:
    """Returns the caption of a scene of one object; `relation` is that to the floor."""
    kinds = (kind,) if kind else ()
    return SceneCaptions(relation, f"{Noun.of(scene.objects[0], kinds)} {tail}", kinds=kinds)


def on_its_floor(scene: Scene, kind: str | None) -> SceneCaptions:
    """Returns captions with one word for a relation and one phrase for a floor.

    They state the relation of two objects or, where `kind` is given, that kind of attribute.
    """
    tail = FLOOR_PHRASES[scene.floor]
    if len(scene.objects) == 1:
        return alone(scene, kind, tail.split()[0], tail)
    if kind is not None:
        return attributed(scene, (kind, kind), tail)
    relation = clear_relation(scene, 0, 1) or ""
    return related(scene, PHRASES[relation], PHRASES[INVERSE[relation]], tail)


class AR4TPairs(PairSeries):
    """Scenes of two objects with their hard negatives.

    Even items exchange the objects' positions, which reverses their relation, odd items an
    attribute. Relations, kinds of attributes and the values of each kind take turns.
    """

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """The relations of object 0 to object 1; a stack needs two shapes that can carry."""
        stacked = len(self._flat) > 1
        first, inverse = ("left", "above", "front", "on"), ("right", "below", "behind", "under")
        return first[: 3 + stacked] + inverse[: 3 + stacked]

    @cached_property
    def _flat(self) -> tuple[str, ...]:
        allowed = {shape for _, shape in self.spec.compositions()}
        return tuple(shape for shape in self.spec.shapes if shape in _FLAT and shape in allowed)

    @cached_property
    def _exchanges(self) -> dict[str, list[tuple[str, str]]]:
        """The values that objects 0 and 1 can have, by kind, in an order that spreads them."""
        exchanges = {}
        for kind, values in self.spec.attributes().items():
            pairs = spread_pairs(values)
            if kind == "color":
                pairs = list(filter(self._allowed, pairs))
            if pairs:
                exchanges[kind] = pairs
        return exchanges

    def _allowed(self, colors: tuple[str, str]) -> bool:
        """Tells whether two shapes or more may have either colour."""
        first, second = colors
        forbidden = self.spec.forbidden
        either = [
            shape
            for shape in self.spec.shapes
            if (first, shape) not in forbidden and (second, shape) not in forbidden
        ]
        return len(either) > 1

    def relation(self, index: int) -> str | None:
        """Returns the relation that item `index` reverses, None where it exchanges an attribute."""
        return None if index % 2 else self.relations[index // 2 % len(self.relations)]

    def attribute(self, index: int) -> str | None:
        """Returns the attribute that item `index` exchanges, None where it reverses a relation."""
        kinds = list(self._exchanges) or ["color"]
        return kinds[index // 2 % len(kinds)] if index % 2 else None

    @override
    def attempt(self, index: int, rng: random.Random) -> Pair | None:
        relation = self.relation(index)
        spec = replace(self.spec, stack_probability=0.0)
        # Either object must carry the other, so both are flat and of one size.
        if relation in ("on", "under"):
            spec = replace(spec, shapes=self._flat, sizes=(rng.choice(spec.sizes),))
        scene = sample_scene(spec, rng)
        a, b = scene.objects
        if a.shape == b.shape:
            return None
        if relation is None:
            values = self.exchange(index, rng)
            return self._exchanged(scene, values, rng) if values else None
        if relation in GROUND_RELATIONS:
            clear = clear_relation(scene, 0, 1) == relation
            return reversed_on_floor(scene) if clear else None
        return _upright(scene, relation, rng)

    def exchange(self, index: int, rng: random.Random) -> Mapping[str, tuple[str, str]]:
        """Returns the values of objects 0 and 1 that item `index` exchanges, by kind.

        They are empty where no two values can be exchanged in this world.
        """
        kind = self.attribute(index) or "color"
        pairs = self._exchanges.get(kind)
        if not pairs:
            return {}
        turn = index // 2 // len(self._exchanges)
        return {kind: pairs[turn % len(pairs)]}

    def captions(self, index: int, pair: Sequence[Scene]) -> tuple[SceneCaptions, ...]:
        """Returns the captions of both scenes of item `index`."""
        return tuple(on_its_floor(scene, self.attribute(index)) for scene in pair)

    def _exchanged(
        self, scene: Scene, values: Mapping[str, tuple[str, str]], rng: random.Random
    ) -> Pair | None:
        a, b = scene.objects
        for kind, (first, second) in values.items():
            a, b = replace(a, **{kind: second}), replace(b, **{kind: first})
        shown = set(product((a.color, b.color), (a.shape, b.shape)))
        if "color" in values and shown & self.spec.forbidden:
            return None
        # The positions belong to the former sizes; exchanging the values lays the objects out.
        shown_first = _twin(replace(scene, objects=(a, b)), values, rng)
        return shown_first, _twin(shown_first, values, rng)


def spread_pairs(values: Sequence[T]) -> list[tuple[T, T]]:
    """Returns all ordered pairs of different values; the first n have each value once on a side.

    Example:
        >>> spread_pairs("abc")
        [('a', 'b'), ('b', 'c'), ('c', 'a'), ('a', 'c'), ('b', 'a'), ('c', 'b')]
    """
    pairs: list[tuple[T, T]] = []
    for distance in range(1, len(values)):
        turned = (*values[distance:], *values[:distance])
        pairs += zip(values, turned, strict=True)
    return pairs


def _twin(scene: Scene, kinds: Iterable[str], rng: random.Random) -> Scene:
    """The scene with these attributes of its objects exchanged."""
    for kind in kinds:
        scene = sample_twin(scene, kind, rng)
    return scene


def _upright(scene: Scene, relation: str, rng: random.Random) -> Pair | None:
    """The scene with one object on or over the other, and the scene with the two exchanged."""
    stacked = relation in ("on", "under")
    a, b = scene.objects
    gap = 0.0
    if stacked:
        a, b = replace(a, standing=False), replace(b, standing=False)
    else:
        gap = rng.uniform(*_GAP) * (a.ground_radius + b.ground_radius)
    for _ in range(_POSITIONS):
        spot = rng.uniform(-2.4, 2.4), rng.uniform(-2.6, 1.0)
        aside = rng.uniform(-_ASIDE, _ASIDE), rng.uniform(-_ASIDE, _ASIDE)
        low_a, low_b = on_floor(a, *spot), on_floor(b, *spot)
        high_a, high_b = _over(a, low_b, gap, aside), _over(b, low_a, gap, aside)
        if all(map(scene.view.shows, (low_a, low_b, high_a, high_b))):
            if stacked:
                high_a, high_b = replace(high_a, on=1), replace(high_b, on=0)
            up = replace(scene, objects=(high_a, low_b))
            down = replace(scene, objects=(low_a, high_b))
            return (up, down) if relation in ("on", "above") else (down, up)
    return None


def _over(
    obj: SceneObject, base: SceneObject, gap: float, aside: tuple[float, float]
) -> SceneObject:
    x, y = (base.center[k] + aside[k] for k in (0, 1))
    return obj.at(x, y, 2.0 * base.half_height + gap)


@dataclass(frozen=True)
class AR4TSingles(Series):
    """Scenes of one object without a hard negative.

    The first `unary` state where the object is, and shapes take turns; the others state one of its
    attributes, and values take turns.
    """

    unary: int

    @cached_property
    def _values(self) -> list[tuple[str, str]]:
        return stated_values(self.spec)

    def attribute(self, index: int) -> str | None:
        """Returns the attribute that the caption of scene `index` states."""
        return self._value(index)[0] if index >= self.unary else None

    def _value(self, index: int) -> tuple[str, str]:
        return self._values[(index - self.unary) % len(self._values)]

    def captions(self, index: int, scene: Scene) -> SceneCaptions:
        """Returns the caption of scene `index`."""
        return on_its_floor(scene, self.attribute(index))

    @override
    def attempt(self, index: int, rng: random.Random) -> tuple[Scene, ...] | None:
        shown: dict[str, tuple[str, ...]] = {}
        if index < self.unary:
            shown["shapes"] = (self.spec.shapes[index % len(self.spec.shapes)],)
        else:
            kind, value = self._value(index)
            shown[f"{kind}s"] = (value,)
        return (sample_scene(replace(self.spec, **shown), rng),)


def stated_values(spec: WorldSpec) -> list[tuple[str, str]]:
    """Returns the kinds and values of attributes that a scene of one object can state."""
    colors = {color for color, _ in spec.compositions()}
    return [
        (kind, value)
        for kind, values in stated_attributes(spec).items()
        for value in values
        if kind != "color" or value in colors
    ]


def singles_beside(pairs: int, spec: WorldSpec, repeats: int = 1) -> tuple[int, int]:
    """Returns how many scenes of one object PUG renders beside so many items of two scenes.

    Unary ones are 3/10 of the scenes with a relation. PUG shows an attribute alone as often as with
    each of the n attributes: `repeats` scenes for n with exchanged attributes, five in the test
    split (20 scenes of an attribute alone, 4 with each other one).

    Example:
        >>> singles_beside(500, WorldSpec(max_objects=2))  # 14 values of attributes are stated
        (150, 35)
    """
    relations, attributes = pairs - pairs // 2, pairs // 2
    values = len(stated_values(spec))
    return round(_UNARY * 2 * relations), repeats * 2 * attributes // values if values else 0
