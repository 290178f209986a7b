"""What all writers of captions share.

In: rendered scenes and a writer. Out: rows of a file, each drawn with a seed of its own.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple, TypeVar

from data_builders.phrases import PHRASES, related
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, Scene
from data_builders.worlds.scenes.statements import (
    Exchanged,
    Noun,
    absent,
    clear_relations,
    describe,
    exchange,
    relation_holds,
    stated_attributes,
)

T = TypeVar("T")


@dataclass(frozen=True)
class SceneContext:
    """A scene, the attributes and shapes its captions may use, and a random generator."""

    scene: Scene
    kinds: Mapping[str, Sequence[str]]
    shapes: Sequence[str]
    rng: random.Random

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """Returns the values in random order."""
        return self.rng.sample(values, len(values))

    def relations(self) -> list[tuple[Noun, str, Noun]]:
        """Returns the relations that stand out, in random order, between nouns with colours."""
        nouns = [describe(obj) for obj in self.scene.objects]
        edges = self.shuffled(clear_relations(self.scene))
        return [(nouns[i], name, nouns[j]) for i, name, j in edges]

    def exchanges(self, kind: str) -> Iterator[Exchanged]:
        """Yields two nouns, and the same with an attribute exchanged, which is false."""
        pairs = list(permutations(range(len(self.scene.objects)), 2))
        for i, j in self.shuffled(pairs):
            exchanged = exchange(self.scene, i, j, kind)
            if exchanged is not None:
                yield exchanged

    def one_way_relation(self) -> tuple[Noun, str, Noun] | None:
        """Returns a relation on the floor that stands out and is false with its objects exchanged.

        Random among all such relations; None if there is none.
        """
        for first, name, second in self.relations():
            exchanged = relation_holds(self.scene, second, name, first)
            if name in GROUND_RELATIONS and exchanged is False:
                return first, name, second
        return None


def contexts(
    images: Sequence[SceneImage], spec: WorldSpec, seed: int, name: str
) -> Iterator[tuple[SceneImage, SceneContext]]:
    """Yields the context of each image of a world; `name` seeds its random generator."""
    kinds = stated_attributes(spec)
    for image in images:
        rng = random.Random(f"{seed}:{name}:{image.file}")
        yield image, SceneContext(image.scene, kinds, spec.shapes, rng)


@dataclass(frozen=True)
class SuiteScenes:
    """The scenes of a suite, the words of captions, the maximum rows of a file, and the seed."""

    images: Sequence[SceneImage]
    kinds: Mapping[str, Sequence[str]]
    shapes: Sequence[str]
    count: int
    seed: int

    def context(self, image: SceneImage, name: str) -> SceneContext:
        """Returns the context of an image; `name` seeds its random generator."""
        rng = random.Random(f"{self.seed}:{name}:{image.file}")
        return SceneContext(image.scene, self.kinds, self.shapes, rng)

    def rows(
        self, name: str, write: Callable[[SceneContext], T | None]
    ) -> list[tuple[SceneImage, T]]:
        """Returns the first `count` images for which `write` returns a row, with that row."""
        rows: list[tuple[SceneImage, T]] = []
        for image in self.images:
            if len(rows) < self.count and (row := write(self.context(image, name))) is not None:
                rows.append((image, row))
        return rows


class Foil(NamedTuple):
    """A true caption and a false one, and the words that differ."""

    caption: str
    foil: str
    word: str
    foil_word: str


def replaced_object(context: SceneContext) -> Foil | None:
    """Returns a relation whose first object is replaced by an absent one."""
    for first, name, second in context.relations():
        for shape in context.shuffled(context.shapes):
            other = first.replaced("shape", shape)
            if absent(context.scene, other):
                texts = related(first, name, second), related(other, name, second)
                return Foil(*texts, first.shape, shape)
    return None


def replaced_relation(context: SceneContext) -> Foil | None:
    """Returns a relation that is replaced by a false one."""
    for first, name, second in context.relations():
        for other in context.shuffled(GROUND_RELATIONS):
            if relation_holds(context.scene, first, other, second) is False:
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
