"""PUG:AR4T's scenes with the words of appendix B.5 (Bordes et al. 2023).

In: a spec and a seed. Out: scenes and their captions, and the series of a split in either form.

Beside `ar4t_scenes`: two objects state attributes of different kinds, a relation has several words
with several negatives each, and one of three unary relations states the place.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from typing_extensions import override

from data_builders.phrases import PHRASES
from data_builders.worlds.scenes.ar4t_scenes import (
    AR4TPairs,
    AR4TSingles,
    SceneCaptions,
    alone,
    attributed,
    related,
    singles_beside,
    spread_pairs,
    stated_values,
)
from data_builders.worlds.scenes.captions import clear_relation
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.scene import FLOORS, GROUND_RELATIONS, Scene
from data_builders.worlds.scenes.series import Series

AR4TForm = Literal["world", "paper"]
SINGLES = {"train": "ar4t_single", "test": "ar4t_single_test"}  # splits of scenes of one object
_TEST_REPEATS = 5  # scenes of an attribute alone in the test split of the paper
Value = tuple[str, str]  # kind of attribute, value
_GROUND = {PHRASES[relation]: relation for relation in GROUND_RELATIONS}
UNARY = ("at", "in", "inside")  # table 7
CONTACT = ("on", "on top of")  # words that are false of an object in the air
OVER, UNDER = ("above", "on top of", "on"), ("below", "beneath", "under")
# Table 7: the words of the relations, each with those of its negatives.
NEGATIVES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(OVER, UNDER),
    **dict.fromkeys(UNDER, OVER),
    "behind": ("in front of",),
    "in front of": ("behind",),
    "to the left of": ("to the right of",),
    "to the right of": ("to the left of",),
}
FLOOR_NAMES = {name: name for name in FLOORS} | {
    name: f"{name} floor" for name in ("concrete", "wood")
}


class PaperPairs(AR4TPairs):
    """Scenes of two objects with their hard negatives, stated as in appendix B.5.

    Even items exchange the objects' positions; the ten words of the relations take turns, and one
    of the negatives of table 7 is drawn. Odd items exchange the attributes that the caption states,
    one of each object, of one kind or of two ("red cube and rubber sphere"); all pairs of different
    values take turns.

    An object stands on the other where a caption says "on" or "on top of", else it hangs over it.
    """

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of the relations; "on" needs two shapes that can carry."""
        stacked = "on" in self.relations
        return tuple(word for word in NEGATIVES if stacked or word not in CONTACT)

    def pair_of_words(self, index: int) -> tuple[str, str]:
        """Returns the relation of object 0 to object 1 in both scenes of item `index`."""
        word = self.words[index // 2 % len(self.words)]
        negatives = [negative for negative in NEGATIVES[word] if negative in self.words]
        return word, self._rng("negative", index).choice(negatives)

    @override
    def relation(self, index: int) -> str | None:
        if index % 2:
            return None
        word, negative = self.pair_of_words(index)
        if word in _GROUND:
            return _GROUND[word]
        standing = word in CONTACT or negative in CONTACT
        over, under = ("on", "under") if standing else ("above", "below")
        return over if word in OVER else under

    @cached_property
    def pairs_of_values(self) -> list[tuple[Value, Value]]:
        """The attributes that objects 0 and 1 state, in an order that spreads them."""
        values = stated_values(self.spec)
        random.Random(f"{self.seed}:values").shuffle(values)
        return [pair for pair in spread_pairs(values) if self._can_exchange(*pair)]

    def _can_exchange(self, first: Value, second: Value) -> bool:
        if first[0] == second[0]:
            return first[0] != "color" or self._allowed((first[1], second[1]))
        return all(self._others(value) for value in (first, second))

    def _others(self, value: Value) -> list[str]:
        """The values of that kind which the other object can have instead."""
        kind, name = value
        others = [other for other in self.spec.attributes()[kind] if other != name]
        return [x for x in others if kind != "color" or self._allowed((name, x))]

    def stated(self, index: int) -> tuple[Value, Value]:
        """Returns the attributes that the caption of the first scene of item `index` states."""
        return self.pairs_of_values[index // 2 % len(self.pairs_of_values)]

    @override
    def exchange(self, index: int, rng: random.Random) -> Mapping[str, tuple[str, str]]:
        if not self.pairs_of_values:
            return {}
        first, second = self.stated(index)
        if first[0] == second[0]:
            return {first[0]: (first[1], second[1])}
        # Neither object has the stated value of the other, so that the negative is false.
        return {
            first[0]: (first[1], rng.choice(self._others(first))),
            second[0]: (rng.choice(self._others(second)), second[1]),
        }

    @override
    def captions(self, index: int, pair: Sequence[Scene]) -> tuple[SceneCaptions, ...]:
        rng = self._rng("captions", index)
        tail = f"{rng.choice(UNARY)} {FLOOR_NAMES[pair[0].floor]}"
        if index % 2:
            kinds = [kind for kind, _ in self.stated(index)]
            return attributed(pair[0], kinds, tail), attributed(pair[1], kinds[::-1], tail)
        words = self.pair_of_words(index)
        return tuple(
            related(scene, word, rng.choice(_true_inverses(word, scene)), tail)
            for scene, word in zip(pair, words, strict=True)
        )

    def _rng(self, name: str, index: int) -> random.Random:
        return random.Random(f"{self.seed}:{name}:{index}")


def _true_inverses(word: str, scene: Scene) -> list[str]:
    """The negatives of a word that are true of object 1 to object 0."""
    standing = clear_relation(scene, 0, 1) in ("on", "under")
    return [inverse for inverse in NEGATIVES[word] if standing or inverse not in CONTACT]


class PaperSingles(AR4TSingles):
    """Scenes of one object at, in or inside a place; the three take turns without an attribute."""

    @override
    def captions(self, index: int, scene: Scene) -> SceneCaptions:
        kind = self.attribute(index)
        turn = index // len(self.spec.shapes)  # shapes take turns, too
        rng = random.Random(f"{self.seed}:captions:{index}")
        relation = rng.choice(UNARY) if kind else UNARY[turn % len(UNARY)]
        return alone(scene, kind, relation, f"{relation} {FLOOR_NAMES[scene.floor]}")


PAIRS = {"world": AR4TPairs, "paper": PaperPairs}  # series of scenes with hard negatives
_ALONE = {"world": AR4TSingles, "paper": PaperSingles}


def ar4t_splits(
    form: AR4TForm, split: str, pairs: int, spec: WorldSpec, seed: Callable[[str], int]
) -> Iterator[tuple[str, Series, int]]:
    """Yields the name, the series and the number of scenes of each part of a split.

    Scenes of one object are in both splits of the paper, and in the world's form in training alone.
    """
    two = replace(spec, min_objects=2, max_objects=2)
    name = f"ar4t_{split}"
    yield name, PAIRS[form](two, seed(name)), 2 * pairs
    if split == "test" and form == "world":
        return
    one = replace(spec, min_objects=1, max_objects=1)
    repeats = _TEST_REPEATS if split == "test" else 1
    unary, isolated = singles_beside(pairs, one, repeats)
    yield SINGLES[split], _ALONE[form](one, seed(SINGLES[split]), unary), unary + isolated
