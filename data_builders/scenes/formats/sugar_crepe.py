"""SugarCrepe's seven files (Hsieh et al. 2023): something added, replaced or swapped."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from data_builders.scenes.drawing import Drawn
from data_builders.scenes.grammar import Scene
from data_builders.scenes.statements import (
    Noun,
    article,
    edges,
    exchangeable,
    noun,
    related,
    sayable,
    there,
    worded,
)

Pair = tuple[str, str]
Entries = dict[str, dict[str, str]]
_RELATIONS = ("left", "right", "front", "behind")


@dataclass(frozen=True)
class _Asked:
    """A scene, what may be said of its objects, and a source of chance."""

    scene: Scene
    kinds: Mapping[str, Sequence[str]]
    shapes: Sequence[str]
    rng: random.Random

    def edges(self) -> list[tuple[Noun, str, Noun]]:
        """The relations that stand out, shuffled, between nouns with their colours."""
        things = self.scene.objects
        stated = edges(self.scene, range(len(things)))
        return [
            (noun(things[i]), name, noun(things[j]))
            for i, name, j in self.rng.sample(stated, len(stated))
        ]

    def shuffled(self, values: Sequence[str]) -> list[str]:
        return self.rng.sample(values, len(values))


def subsets(
    drawn: Sequence[Drawn],
    kinds: Mapping[str, Sequence[str]],
    shapes: Sequence[str],
    count: int,
    seed: int,
) -> dict[str, Entries]:
    """Returns the contents of the seven files by name, `count` items each where there are so many.

    Args:
        drawn: The scenes, of which each gives at most one item a file.
        kinds: Which attributes are said, and their values.
        shapes: The shapes of the world.
        count: Most items of a file.
        seed: Of the choices.
    """
    content: dict[str, Entries] = {}
    for name, make in _MAKERS.items():
        entries: Entries = {}
        for d in drawn:
            rng = random.Random(f"{seed}:{name}:{d.file}")
            pair = make(_Asked(d.scene, kinds, shapes, rng))
            if pair and len(entries) < count:
                texts = {"caption": pair[0], "negative_caption": pair[1]}
                entries[str(len(entries))] = {"filename": d.file.rpartition("/")[2], **texts}
        content[name] = entries
    return content


def _replace_obj(asked: _Asked) -> Pair | None:
    for first, name, second in asked.edges():
        for shape in asked.shuffled(asked.shapes):
            other = first.having("shape", shape)
            if there(asked.scene, other) is False:
                return worded(first, name, second), worded(other, name, second)
    return None


def _replace_att(asked: _Asked) -> Pair | None:
    things = asked.scene.objects
    for thing in asked.rng.sample(things, len(things)):
        for kind in asked.shuffled(sayable(thing, asked.kinds)):
            said = noun(thing, [kind])
            for value in asked.shuffled(asked.kinds[kind]):
                other = said.having(kind, value)
                if there(asked.scene, other) is False:
                    return f"a photo of {article(said)}", f"a photo of {article(other)}"
    return None


def _replace_rel(asked: _Asked) -> Pair | None:
    for first, name, second in asked.edges():
        for other in asked.shuffled(_RELATIONS):
            if related(asked.scene, first, other, second) is False:
                return worded(first, name, second), worded(first, other, second)
    return None


def _swap_obj(asked: _Asked) -> Pair | None:
    for first, name, second in asked.edges():
        if related(asked.scene, second, name, first) is False:
            return worded(first, name, second), worded(second, name, first)
    return None


def _swap_att(asked: _Asked) -> Pair | None:
    places = list(permutations(range(len(asked.scene.objects)), 2))
    choices = list(product(places, asked.kinds))
    for (i, j), kind in asked.rng.sample(choices, len(choices)):
        if pair := exchangeable(asked.scene, i, j, kind):
            true, false = (f"{article(a)} and {article(b)}" for a, b in pair)
            return true, false
    return None


def _add_obj(asked: _Asked) -> Pair | None:
    for first, name, second in asked.edges():
        for shape in asked.shuffled(asked.shapes):
            if there(asked.scene, added := Noun(shape)) is False:
                text = worded(first, name, second)
                return text, f"{text} and {article(added)}"
    return None


def _add_att(asked: _Asked) -> Pair | None:
    for colored, name, second in asked.edges():
        first = Noun(colored.shape)
        for kind in asked.shuffled(list(asked.kinds)):
            for value in asked.shuffled(asked.kinds[kind]):
                added = first.having(kind, value)
                if there(asked.scene, added) is False:
                    return worded(first, name, second), worded(added, name, second)
    return None


_MAKERS: dict[str, Callable[[_Asked], Pair | None]] = {
    "add_att": _add_att,
    "add_obj": _add_obj,
    "replace_att": _replace_att,
    "replace_obj": _replace_obj,
    "replace_rel": _replace_rel,
    "swap_att": _swap_att,
    "swap_obj": _swap_obj,
}
