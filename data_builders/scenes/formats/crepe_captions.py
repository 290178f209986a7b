"""CREPE's captions as graphs of atoms, and negatives that differ in an atom (Ma et al. 2023).

Atoms are objects, attributes and relations. A caption says one relation a sentence, and then what
else is there: "red cube behind sphere. there is a cone."
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from data_builders.scenes.captions import INVERSE, PHRASES
from data_builders.scenes.grammar import Scene
from data_builders.scenes.statements import (
    Noun,
    Truth,
    all_of,
    article,
    edges,
    found,
    noun,
    related,
    sayable,
    there,
)

_DRAWS = 60  # of one caption, before the scene is taken not to have it
Edge = tuple[int, str, int]


@dataclass(frozen=True)
class Caption:
    """Nouns, relations between them, and what of both is denied.

    Attributes:
        nouns: The nouns; each means one object of the scene.
        edges: Relations between positions in `nouns`.
        absent: Positions of nouns without a relation that are said not to be there.
        denied: For positions in `edges`, "no" ("there is no cube behind a cone") or "not" ("cube
            not behind cone").
    """

    nouns: tuple[Noun, ...]
    edges: tuple[Edge, ...]
    absent: frozenset[int] = frozenset()
    denied: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def alone(self) -> list[int]:
        """Positions of the nouns that no relation names."""
        named = {k for i, _, j in self.edges for k in (i, j)}
        return [k for k in range(len(self.nouns)) if k not in named]

    def __str__(self) -> str:
        """The sentences."""
        said = [self._sentence(place, edge) for place, edge in enumerate(self.edges)]
        for k in self.alone:
            noun = self.nouns[k]
            said.append(f"there is no {noun}" if k in self.absent else f"there is {article(noun)}")
        return ". ".join(said) + "."

    def _sentence(self, place: int, edge: Edge) -> str:
        first, second, phrase = self.nouns[edge[0]], self.nouns[edge[2]], PHRASES[edge[1]]
        how = self.denied.get(place)
        if how == "no":
            return f"there is no {first} {phrase} {article(second)}"
        return f"{first} {'not ' if how else ''}{phrase} {second}"

    def holds(self, scene: Scene) -> Truth:
        """Tells whether all sentences are true."""
        alone = [k for k in self.alone if k not in self.absent]
        return all_of(
            [
                *(self._related(scene, place, edge) for place, edge in enumerate(self.edges)),
                *(_denied(there(scene, self.nouns[k])) for k in self.absent),
                there(scene, *(self.nouns[k] for k in alone)),
            ]
        )

    def _related(self, scene: Scene, place: int, edge: Edge) -> Truth:
        first, second = self.nouns[edge[0]], self.nouns[edge[2]]
        truth = related(scene, first, edge[1], second)
        how = self.denied.get(place)
        if how == "not" and not all(len(found(scene, one)) == 1 for one in (first, second)):
            return None  # which of them does it mean?
        return _denied(truth) if how else truth

    def with_noun(self, k: int, noun: Noun) -> "Caption":
        """Returns the caption with another noun at position k."""
        return replace(self, nouns=(*self.nouns[:k], noun, *self.nouns[k + 1 :]))


def _denied(truth: Truth) -> Truth:
    return None if truth is None else not truth


def draw(
    scene: Scene, atoms: int, kinds: Mapping[str, Sequence[str]], rng: random.Random
) -> Caption | None:
    """Draws a true caption of so many atoms whose nouns mean one object each, or None.

    Args:
        scene: The scene.
        atoms: How many objects, attributes and relations together.
        kinds: Which attributes may be said.
        rng: Source of chance.
    """
    for _ in range(_DRAWS):
        count = rng.randint(min(2, len(scene.objects)), len(scene.objects))
        chosen = rng.sample(range(len(scene.objects)), count)
        # One direction of each relation: the other says the same.
        stated = [edge for edge in edges(scene, chosen) if edge[0] < edge[2]]
        stated = rng.sample(stated, rng.randint(0, len(stated)))
        said = [(k, kind) for k in chosen for kind in sayable(scene.objects[k], kinds)]
        wanted = atoms - count - len(stated)
        if not 0 <= wanted <= len(said):
            continue
        said = rng.sample(said, wanted)
        nouns = tuple(
            noun(scene.objects[k], [kind for kind in kinds if (k, kind) in said]) for k in chosen
        )
        if all(len(found(scene, one)) == 1 for one in nouns):
            place = {k: position for position, k in enumerate(chosen)}
            turned = [
                (i, name, j) if rng.random() < 0.5 else (j, INVERSE[name], i)
                for i, name, j in stated
            ]
            return Caption(nouns, tuple((place[i], name, place[j]) for i, name, j in turned))
    return None


def replaced(
    caption: Caption, kinds: Mapping[str, Sequence[str]], shapes: Sequence[str]
) -> Iterator[Caption]:
    """Yields the captions with one atom replaced by another of its kind."""
    for k, one in enumerate(caption.nouns):
        for shape in shapes:
            yield caption.with_noun(k, one.having("shape", shape))
        for kind, _ in one.said:
            for value in kinds[kind]:
                yield caption.with_noun(k, one.having(kind, value))
    for place, (i, _, j) in enumerate(caption.edges):
        for name in PHRASES:
            edges = (*caption.edges[:place], (i, name, j), *caption.edges[place + 1 :])
            yield replace(caption, edges=edges)


def swapped(caption: Caption) -> Iterator[Caption]:
    """Yields the captions with shapes, attributes, or several of these exchanged by two nouns."""
    for k, j in combinations(range(len(caption.nouns)), 2):
        first, second = caption.nouns[k], caption.nouns[j]
        shared = [kind for kind, _ in first.said if second.get(kind)]
        for count in range(1, len(shared) + 2):
            for exchanged in combinations(["shape", *shared], count):
                one, other = first, second
                for kind in exchanged:
                    one = one.having(kind, second.get(kind) or "")
                    other = other.having(kind, first.get(kind) or "")
                yield caption.with_noun(k, one).with_noun(j, other)


def negated(caption: Caption) -> Iterator[Caption]:
    """Yields the captions with one atom denied, and then those with two."""
    single = list(_denials(caption))
    yield from single
    for once in single:
        yield from _denials(once)


def _denials(caption: Caption) -> Iterator[Caption]:
    for k in caption.alone:
        if k not in caption.absent:
            yield replace(caption, absent=caption.absent | {k})
    for place, how in product(range(len(caption.edges)), ("not", "no")):
        if place not in caption.denied:
            yield replace(caption, denied={**caption.denied, place: how})
    for k, one in enumerate(caption.nouns):
        for kind, _ in one.said:
            if kind not in one.denied:
                yield caption.with_noun(k, one.denying(kind))
