"""CREPE's captions and their hard negatives (Ma et al. 2023).

In: a scene. Out: a caption, and captions that differ from it by type.

A caption states its relations, then the other objects: "red cube behind sphere. there is a cone."
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from data_builders.phrases import INVERSE, PHRASES, with_article
from data_builders.worlds.scenes.formats.context import SceneContext
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, Scene
from data_builders.worlds.scenes.statements import (
    Edge,
    Noun,
    Truth,
    all_true,
    clear_relations,
    exists,
    relation_holds,
    stated_kinds,
)

_ATTEMPTS = 60  # for one caption, before the scene counts as unable to hold it
Kinds = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Caption:
    """Nouns and relations (`edges`, between positions in `nouns`), some negated.

    `absent` holds positions of negated nouns; `negated` maps positions in `edges` to "no" ("there
    is no cube behind a cone") or "not" ("cube not behind cone").
    """

    nouns: tuple[Noun, ...]
    edges: tuple[Edge, ...]
    absent: frozenset[int] = frozenset()
    negated: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def unrelated(self) -> list[int]:
        """Positions of the nouns without a relation."""
        related = {k for i, _, j in self.edges for k in (i, j)}
        return [k for k in range(len(self.nouns)) if k not in related]

    def __str__(self) -> str:
        sentences = [self._sentence(k) for k in range(len(self.edges))]
        for k in self.unrelated:
            noun = self.nouns[k]
            sentences.append(f"there is {f'no {noun}' if k in self.absent else with_article(noun)}")
        return ". ".join(sentences) + "."

    def _sentence(self, k: int) -> str:
        i, name, j = self.edges[k]
        first, second, phrase = self.nouns[i], self.nouns[j], PHRASES[name]
        if self.negated.get(k) == "no":
            return f"there is no {first} {phrase} {with_article(second)}"
        return f"{first} {'not ' if k in self.negated else ''}{phrase} {second}"

    def holds(self, scene: Scene) -> Truth:
        """Tells whether all sentences are true."""
        present = [self.nouns[k] for k in self.unrelated if k not in self.absent]
        return all_true(
            [
                *(self._relation_holds(scene, k) for k in range(len(self.edges))),
                *(_not(exists(scene, self.nouns[k])) for k in self.absent),
                exists(scene, *present),
            ]
        )

    def _relation_holds(self, scene: Scene, k: int) -> Truth:
        i, name, j = self.edges[k]
        first, second = self.nouns[i], self.nouns[j]
        truth, negation = relation_holds(scene, first, name, second), self.negated.get(k)
        clear = len(first.referents(scene)) == len(second.referents(scene)) == 1
        if negation == "not" and not clear:
            return None  # ambiguous: the nouns have several referents
        return _not(truth) if negation else truth

    def with_noun(self, k: int, noun: Noun) -> "Caption":
        """Returns the caption with another noun at position k."""
        return replace(self, nouns=(*self.nouns[:k], noun, *self.nouns[k + 1 :]))


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def sample_caption(context: SceneContext, atoms: int) -> Caption | None:
    """Samples a true caption of so many atoms whose nouns refer to one object each, or None."""
    scene, kinds, rng = context.scene, context.kinds, context.rng
    for _ in range(_ATTEMPTS):
        count = rng.randint(min(2, len(scene.objects)), len(scene.objects))
        chosen = rng.sample(range(len(scene.objects)), count)
        # One direction of each relation: the other states the same.
        edges = [edge for edge in clear_relations(scene, chosen) if edge[0] < edge[2]]
        edges = rng.sample(edges, rng.randint(0, len(edges)))
        attributes: list[tuple[int, str]] = []
        for k in chosen:
            attributes += [(k, kind) for kind in stated_kinds(scene.objects[k], kinds)]
        wanted = atoms - count - len(edges)
        if not 0 <= wanted <= len(attributes):
            continue
        attributes = rng.sample(attributes, wanted)
        nouns = []
        for k in chosen:
            stated = [kind for kind in kinds if (k, kind) in attributes]
            nouns.append(Noun.of(scene.objects[k], stated))
        if all(len(noun.referents(scene)) == 1 for noun in nouns):
            turned = []
            for i, name, j in edges:
                a, b = chosen.index(i), chosen.index(j)
                forward = rng.random() < 0.5
                edge = (a, name, b) if forward else (b, INVERSE[name], a)
                turned.append(edge)
            return Caption(tuple(nouns), tuple(turned))
    return None


def replaced(caption: Caption, kinds: Kinds, shapes: Sequence[str]) -> Iterator[Caption]:
    """Yields the captions with one atom replaced by another of its kind."""
    for k, noun in enumerate(caption.nouns):
        for shape in shapes:
            yield caption.with_noun(k, noun.replaced("shape", shape))
        for kind, _ in noun.attributes:
            for value in kinds[kind]:
                yield caption.with_noun(k, noun.replaced(kind, value))
    for k, (i, _, j) in enumerate(caption.edges):
        for name in (*GROUND_RELATIONS, "on", "under"):
            edges = (*caption.edges[:k], (i, name, j), *caption.edges[k + 1 :])
            yield replace(caption, edges=edges)


def swapped(caption: Caption) -> Iterator[Caption]:
    """Yields the captions with shapes, attributes, or several of these exchanged by two nouns."""
    for k, j in combinations(range(len(caption.nouns)), 2):
        first, second = caption.nouns[k], caption.nouns[j]
        common = [kind for kind, _ in first.attributes if second.get(kind)]
        for count in range(1, len(common) + 2):
            for exchanged in combinations(["shape", *common], count):
                new_first, new_second = first, second
                for kind in exchanged:
                    new_first = new_first.replaced(kind, second.get(kind) or "")
                    new_second = new_second.replaced(kind, first.get(kind) or "")
                yield caption.with_noun(k, new_first).with_noun(j, new_second)


def negated(caption: Caption) -> Iterator[Caption]:
    """Yields the captions with one atom negated, and then those with two."""
    single = list(_negations(caption))
    yield from single
    for once in single:
        yield from _negations(once)


def _negations(caption: Caption) -> Iterator[Caption]:
    for k in caption.unrelated:
        if k not in caption.absent:
            yield replace(caption, absent=caption.absent | {k})
    for k, word in product(range(len(caption.edges)), ("not", "no")):
        if k not in caption.negated:
            yield replace(caption, negated={**caption.negated, k: word})
    for k, noun in enumerate(caption.nouns):
        for kind, _ in noun.attributes:
            if kind not in noun.negated:
                yield caption.with_noun(k, noun.negating(kind))


NEGATIVES: dict[str, Callable[[Caption, Kinds, Sequence[str]], Iterator[Caption]]] = {
    "atom": replaced,
    "swap": lambda caption, kinds, shapes: swapped(caption),
    "negate": lambda caption, kinds, shapes: negated(caption),
}
