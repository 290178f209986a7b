"""What all writers of captions share.

In: rendered scenes and a writer. Out: rows of a file, each drawn with a seed of its own.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from typing import NamedTuple, TypeVar

from data_builders.phrases import PHRASES, related
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, Scene, SceneObject
from data_builders.worlds.scenes.statements import (
    Edge,
    Noun,
    clear_relations,
    exists,
    object_count,
    relation_holds,
    stated_attributes,
)

T = TypeVar("T")
Exchanged = tuple[tuple[Noun, Noun], tuple[Noun, Noun]]
"""Two nouns, and the same with an attribute exchanged."""


@dataclass(frozen=True)
class SceneContext:
    """A scene, the world whose words its captions may use, and a random generator.

    With `synonyms`, words of the same meaning take turns in sentences of the grammar.
    """

    scene: Scene
    spec: WorldSpec
    rng: random.Random
    synonyms: bool = False

    @cached_property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """The attributes that captions may state, and their values."""
        return stated_attributes(self.spec)

    def allows(self, *nouns: Noun) -> bool:
        """Tells whether no noun states a composition that the world forbids."""
        forbidden = self.spec.forbidden
        return all((noun.get("color"), noun.shape) not in forbidden for noun in nouns)

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """Returns the values in random order."""
        return self.rng.sample(values, len(values))

    def other_colours(self, obj: SceneObject) -> list[str]:
        """Returns the colours that the object lacks and that its shape may have."""
        nouns = {color: Noun(obj.shape, (("color", color),)) for color in self.spec.colors}
        return [c for c, noun in nouns.items() if c != obj.color and self.allows(noun)]

    def relations(self) -> list[tuple[Noun, str, Noun]]:
        """Returns the relations that stand out, in random order, between nouns with colours."""
        nouns = [Noun.of(obj) for obj in self.scene.objects]
        edges = self.shuffled(clear_relations(self.scene))
        return [(nouns[i], name, nouns[j]) for i, name, j in edges]

    def exchanges(self, *kinds: str) -> Iterator[tuple[Exchanged, int, int, str]]:
        """Yields the nouns of objects i and j, and the same with an attribute of a kind exchanged.

        What is exchanged is false. In random order.
        """
        pairs = permutations(range(len(self.scene.objects)), 2)
        for (i, j), kind in self.shuffled(list(product(pairs, kinds))):
            a, b = self.scene.objects[i], self.scene.objects[j]
            values = getattr(a, kind), getattr(b, kind)
            if a.shape == b.shape or "plain" in values:
                continue
            first, second = Noun.of(a, [kind]), Noun.of(b, [kind])
            swapped = first.replaced(kind, values[1]), second.replaced(kind, values[0])
            if exists(self.scene, *swapped) is False:
                yield ((first, second), swapped), i, j, kind

    def exchanged(
        self, write: Callable[[Noun, Noun], str], kind: str = "color"
    ) -> tuple[str, str] | None:
        """Writes about two nouns, and about the same with their colours, or so, exchanged.

        The second sentence is false, but states no forbidden composition.
        """
        for (true, false), *_ in self.exchanges(kind):
            if self.allows(*false):
                return write(*true), write(*false)
        return None

    def lacking(self, noun: Noun, kind: str) -> Noun | None:
        """Returns the noun with another value of the kind, at random, that the scene lacks."""
        values = self.spec.shapes if kind == "shape" else self.kinds.get(kind, ())
        for value in self.shuffled(values):
            other = noun.replaced(kind, value)
            if other.absent_from(self.scene):
                return other
        return None

    def false_relation(self, first: Noun, second: Noun) -> str | None:
        """Returns a relation on the floor, at random, that the first has not to the second."""
        for name in self.shuffled(GROUND_RELATIONS):
            if relation_holds(self.scene, first, name, second) is False:
                return name
        return None

    def sole_objects(self) -> Iterator[SceneObject]:
        """Yields the objects that no other one shares the shape with, in random order."""
        for obj in self.shuffled(self.scene.objects):
            if object_count(self.scene, obj.shape) == 1:
                yield obj

    def two_relations(self) -> Iterator[tuple[Edge, Edge]]:
        """Yields two relations on the floor of one object to two others, in random order."""
        edges = [edge for edge in clear_relations(self.scene) if edge[1] in GROUND_RELATIONS]
        for one, other in self.shuffled(list(permutations(edges, 2))):
            if one[0] == other[0] and one[2] != other[2]:
                yield one, other

    def one_way_relations(self) -> Iterator[tuple[Noun, str, Noun]]:
        """Yields the relations on the floor that stand out and are false with objects exchanged.

        In random order.
        """
        for first, name, second in self.relations():
            exchanged = relation_holds(self.scene, second, name, first)
            if name in GROUND_RELATIONS and exchanged is False:
                yield first, name, second


def contexts(
    images: Sequence[SceneImage], spec: WorldSpec, seed: int, name: str
) -> Iterator[tuple[SceneImage, SceneContext]]:
    """Yields the context of each image of a world; `name` seeds its random generator."""
    for image in images:
        yield image, context_of(image, spec, seed, name)


def context_of(image: SceneImage, spec: WorldSpec, seed: int, name: str) -> SceneContext:
    """Returns the context of an image of a world; `name` seeds its random generator."""
    rng = random.Random(f"{seed}:{name}:{image.file}")
    return SceneContext(image.scene, spec, rng)


@dataclass(frozen=True)
class SuiteScenes:
    """The scenes of a suite, their world, the maximum rows of a file, and the seed."""

    images: Sequence[SceneImage]
    spec: WorldSpec
    count: int
    seed: int

    def context(self, image: SceneImage, name: str) -> SceneContext:
        """Returns the context of an image; `name` seeds its random generator."""
        return context_of(image, self.spec, self.seed, name)

    def rows(
        self, name: str, write: Callable[[SceneContext], T | None]
    ) -> list[tuple[SceneImage, T]]:
        """Returns the first `count` images for which `write` returns a row, with that row."""
        rows: list[tuple[SceneImage, T]] = []
        for image in self.images:
            if len(rows) < self.count and (row := write(self.context(image, name))) is not None:
                rows.append((image, row))
        return rows


Sentences = tuple[str, str]  # a true one and a false one, or several false ones in JSON
Form = Callable[[SceneContext], Sentences | None]
"""Writes about a scene in the words of a world."""


class Foil(NamedTuple):
    """A true caption and a false one, and the words that differ."""

    caption: str
    foil: str
    word: str
    foil_word: str


def replaced_object(context: SceneContext) -> Foil | None:
    """Returns a relation whose first object is replaced by an absent one."""
    for first, name, second in context.relations():
        other = context.lacking(first, "shape")
        if other is not None:
            texts = related(first, name, second), related(other, name, second)
            return Foil(*texts, first.shape, other.shape)
    return None


def replaced_relation(context: SceneContext) -> Foil | None:
    """Returns a relation that is replaced by a false one."""
    for first, name, second in context.relations():
        other = context.false_relation(first, second)
        if other is not None:
            texts = related(first, name, second), related(first, other, second)
            return Foil(*texts, PHRASES[name], PHRASES[other])
    return None


def swapped_objects(context: SceneContext) -> Foil | None:
    """Returns a relation whose objects change positions."""
    for first, name, second in context.relations():
        if relation_holds(context.scene, second, name, first) is False:
            texts = related(first, name, second), related(second, name, first)
            return Foil(*texts, str(first), str(second))
    return None
