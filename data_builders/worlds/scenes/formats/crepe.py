"""CREPE's csv files (Ma et al. 2023, sections 3 and 4).

In: rendered scenes. Out: captions with hard negatives of several types, as rows of the files.

A caption states its relations, then the other objects: "red cube behind sphere. there is a cone."
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

from data_builders.phrases import INVERSE, PHRASES, both, with_article
from data_builders.worlds.scenes.formats.context import SceneContext, SuiteScenes
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import Composition
from data_builders.worlds.scenes.scene import GROUND_RELATIONS, Scene
from data_builders.worlds.scenes.statements import (
    Edge,
    Noun,
    Truth,
    clear_relations,
    exists,
    relation_holds,
    stated_kinds,
)

COMPLEXITIES = tuple(range(4, 13))
CORPUS = "laion"  # the pre-training corpus that stands for the world's training scenes
BOX = ("x", "y", "width", "height")
PRODUCTIVITY = ("image_id", "caption", "n", "n_objects", "n_relations", "n_attributes",
                "n_connected_components", "hard_negs", *BOX)  # fmt: skip
SYSTEMATICITY = ("region_id", "caption", *BOX, "image_id", "valid_hard_negs_atom",
                 "valid_hard_negs_comp", "valid_hard_negs_combined")  # fmt: skip
_HARD_NEGATIVES = 5  # a row
Row = tuple[Any, ...]  # in the order of the columns
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
        """Tells whether all sentences are true; None where none is false and one is undecided."""
        present = [self.nouns[k] for k in self.unrelated if k not in self.absent]
        truths = [
            *(self._relation_holds(scene, k) for k in range(len(self.edges))),
            *(_not(exists(scene, self.nouns[k])) for k in self.absent),
            exists(scene, *present),
        ]
        if False in truths:
            return False
        return None if None in truths else True

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
TYPES = tuple(NEGATIVES)


def image_id(image: SceneImage) -> int:
    """Returns the number of an image: `VG_100K/<number>.jpg`."""
    return image.index + 1


def productivity(scenes: SuiteScenes, kind: str) -> dict[int, list[Row]]:
    """Returns rows of a type by number of atoms, at most `scenes.count` in all.

    Numbers of atoms take turns until no scene is left that can hold one more row of a number. A row
    has five negatives, all false of the image; its box is the whole image.
    """
    rows: dict[int, list[Row]] = {atoms: [] for atoms in COMPLEXITIES}
    possible = list(COMPLEXITIES)
    for k in itertools.count():
        if not possible or sum(map(len, rows.values())) == scenes.count:
            break
        atoms = possible[k % len(possible)]
        # Another scene begins in each turn, so that no scene has most of the rows.
        for step in range(len(scenes.images)):
            image = scenes.images[(k + step) % len(scenes.images)]
            context = scenes.context(image, f"crepe {kind}:{atoms}")
            row = _productivity_row(image, kind, atoms, context)
            if row is not None and row not in rows[atoms]:
                rows[atoms].append(row)
                break
        else:
            possible.remove(atoms)
    return rows


def _productivity_row(
    image: SceneImage, kind: str, atoms: int, context: SceneContext
) -> Row | None:
    caption = sample_caption(context, atoms)
    if caption is None:
        return None
    candidates = NEGATIVES[kind](caption, context.kinds, context.spec.shapes)
    false = (str(other) for other in candidates if other.holds(context.scene) is False)
    negatives = list(dict.fromkeys(false))
    if len(negatives) < _HARD_NEGATIVES:
        return None
    attributes = sum(len(noun.attributes) for noun in caption.nouns)
    hard = repr(context.rng.sample(negatives, _HARD_NEGATIVES))
    return (
        image_id(image), str(caption), atoms, len(caption.nouns), len(caption.edges), attributes,
        _components(caption), hard, *_whole(image),
    )  # fmt: skip


def _components(caption: Caption) -> int:
    labels = list(range(len(caption.nouns)))
    for i, _, j in caption.edges:
        # An edge joins two components: all nouns of the second take the label of the first.
        kept, absorbed = labels[i], labels[j]
        for k, label in enumerate(labels):
            if label == absorbed:
                labels[k] = kept
    return len(set(labels))


def systematicity(
    scenes: SuiteScenes, compounds: frozenset[Composition], colors: Sequence[str]
) -> list[Row]:
    """Returns rows about objects of the given (color, shape) compounds: "a red cube".

    Atom negatives replace one word, compound negatives spread both words over two absent objects.
    """

    def write(context: SceneContext) -> tuple[str, list[str], list[str]] | None:
        scene, rng = context.scene, context.rng
        objects = [o for o in scene.objects if (o.color, o.shape) in compounds]
        if not objects:
            return None
        noun = Noun.of(rng.choice(objects))
        recolored = [noun.replaced("color", color) for color in colors]
        recolored.remove(noun)
        reshaped = [noun.replaced("shape", shape) for shape in context.spec.shapes]
        reshaped.remove(noun)
        atom = [with_article(other) for other in _absent(scene, (*recolored, *reshaped))]
        comp = []
        for one, other in context.shuffled(list(product(reshaped, recolored))):
            # The order is drawn of each pair, so that no later draw depends on the scene.
            pair = (one, other) if rng.random() < 0.5 else (other, one)
            if len(_absent(scene, pair)) == 2:
                comp.append(both(*pair))
        if not atom or not comp:
            return None
        atom = rng.sample(atom, min(_HARD_NEGATIVES, len(atom)))
        comp = rng.sample(comp, min(_HARD_NEGATIVES, len(comp)))
        return with_article(noun), atom, comp

    rows: list[Row] = []
    for image, (caption, atom, comp) in scenes.rows("crepe systematicity", write):
        negatives = repr(atom), repr(comp), repr([*atom, *comp])
        rows.append((len(rows), caption, *_whole(image), image_id(image), *negatives))
    return rows


def _absent(scene: Scene, nouns: Sequence[Noun]) -> list[Noun]:
    return [noun for noun in nouns if noun.absent_from(scene)]


def _whole(image: SceneImage) -> tuple[int, int, int, int]:
    return 0, 0, image.size, image.size
