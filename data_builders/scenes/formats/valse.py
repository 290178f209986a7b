"""The pieces of VALSE (Parcalabescu et al. 2022, section 3), as far as the world can express them.

Nobody acts in the world and nobody asks. So action replacement changes what is said of the subject,
"the cube is red", and not a verb; and coreference, where VALSE has a caption, a question and its
answer, has a first sentence and one that refers back: "there is one cube. this object is not red".
The answer "yes" or "no" is a "not" that is there or is not.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.scenes.captions import NUMBERS, PHRASES, PLURALS
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.formats.eqben import counting_of
from data_builders.scenes.grammar import Scene, SceneObject
from data_builders.scenes.statements import (
    Noun,
    counted,
    edges,
    noun,
    related,
    sayable,
    there,
    worded,
)

SMALL = 3  # numbers up to which VALSE calls a quantity small
_RELATIONS = ("left", "right", "front", "behind")
_MOST = len(NUMBERS) - 1


@dataclass(frozen=True)
class _Row:
    """Caption and foil, and the words that differ."""

    caption: str
    foil: str
    words: tuple[str, str]


@dataclass(frozen=True)
class _Asked:
    """A scene, what may be said in its world and a source of chance."""

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

    def absent(self) -> list[str]:
        """The shapes that the scene lacks, shuffled."""
        lacking = [shape for shape in self.shapes if not counted(self.scene, shape)]
        return self.rng.sample(lacking, len(lacking))

    def present(self) -> str:
        """A shape of the scene."""
        return self.rng.choice(self.scene.objects).shape

    def sole(self) -> list[tuple[SceneObject, str]]:
        """Objects that no other shares the shape of, each with what to say of it, shuffled."""
        things = [o for o in self.scene.objects if counted(self.scene, o.shape) == 1]
        said = [(o, kind) for o in things for kind in sayable(o, self.kinds)]
        return self.rng.sample(said, len(said))


def pieces(
    drawn: Sequence[Drawn],
    kinds: Mapping[str, Sequence[str]],
    shapes: Sequence[str],
    count: int,
    seed: int,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the contents of the files by piece, at most `count` rows each.

    Foils are false by the scene graph, so all three annotators chose the caption.

    Args:
        drawn: The scenes, of which each gives at most one row a piece.
        kinds: Which attributes are said, and their values.
        shapes: The shapes of the world.
        count: Most rows of a piece.
        seed: Of the choices.
    """
    content: dict[str, dict[str, dict[str, Any]]] = {}
    for piece, make in PIECES.items():
        rows: dict[str, dict[str, Any]] = {}
        for d in drawn:
            rng = random.Random(f"{seed}:valse {piece}:{d.file}")
            row = make(_Asked(d.scene, kinds, shapes, rng))
            if row is not None and len(rows) < count:
                rows[f"scenes_test_{d.index}"] = _record(piece, d, row)
        content[piece] = rows
    return content


def _record(piece: str, d: Drawn, row: _Row) -> dict[str, Any]:
    return {
        "dataset": "scenes",
        "original_split": "test",
        "dataset_idx": d.index,
        "linguistic_phenomena": piece,
        "image_file": d.file.rpartition("/")[2],
        "caption": row.caption,
        "classes": row.words[0],
        "classes_foil": row.words[1],
        "mturk": {"foil": 0, "caption": 3, "other": 0},
        "foil": row.foil,
    }


def _existence(asked: _Asked) -> _Row | None:
    absent = asked.absent()
    lacking = bool(absent) and asked.rng.random() < 0.5
    shape = absent[0] if lacking else asked.present()
    # The same two sentences either way: words alone must not tell which of them is the foil.
    texts = [(f"there is {how} {shape}", how) for how in ("a", "no")]
    (caption, word), (foil, other) = reversed(texts) if lacking else texts
    return _Row(caption, foil, (word, other))


def _plurals(asked: _Asked) -> _Row | None:
    several = [s for s in asked.shapes if counted(asked.scene, s) > 1]
    shape = asked.rng.choice(several) if several else asked.present()
    one, some = f"there is one {shape}", f"there are some {PLURALS[shape]}"
    if several:
        return _Row(some, one, (PLURALS[shape], shape))
    return _Row(one, some, (shape, PLURALS[shape]))


def _counting(asked: _Asked, shape: str | None, numbers: Sequence[int]) -> _Row | None:
    number = counted(asked.scene, shape)
    others = [n for n in numbers if n not in (number, 0)]
    if not others:
        return None
    other = asked.rng.choice(others)
    words = NUMBERS[number], NUMBERS[other]
    return _Row(counting_of(number, shape), counting_of(other, shape), words)


def _counting_hard(asked: _Asked) -> _Row | None:
    return _counting(asked, None, range(1, _MOST + 1))


def _counting_small(asked: _Asked) -> _Row | None:
    shape = asked.present()
    few = counted(asked.scene, shape) <= SMALL
    return _counting(asked, shape, range(1, SMALL + 1)) if few else None


def _counting_adversarial(asked: _Asked) -> _Row | None:
    # The foil is a smaller number, which models are said to prefer.
    return _counting(asked, None, range(1, counted(asked.scene, None)))


def _relations(asked: _Asked) -> _Row | None:
    for first, name, second in asked.edges():
        for other in asked.rng.sample(_RELATIONS, len(_RELATIONS)):
            if related(asked.scene, first, other, second) is False:
                texts = worded(first, name, second), worded(first, other, second)
                return _Row(*texts, (PHRASES[name], PHRASES[other]))
    return None


def _actant_swap(asked: _Asked) -> _Row | None:
    for first, name, second in asked.edges():
        if related(asked.scene, second, name, first) is False:
            texts = worded(first, name, second), worded(second, name, first)
            return _Row(*texts, (str(first), str(second)))
    return None


def _action_replacement(asked: _Asked) -> _Row | None:
    for thing, kind in asked.sole():
        value = getattr(thing, kind)
        if others := [other for other in asked.kinds[kind] if other != value]:
            other = asked.rng.choice(others)
            what = f"the {thing.shape} is"
            return _Row(f"{what} {value}", f"{what} {other}", (value, other))
    return None


def _coreference(asked: _Asked, hard: bool) -> _Row | None:
    """What is said of the object named before is true, or it is denied and false.

    In hard rows the answer is another one for some other object of the scene; in the others an
    attribute is denied only where no object has it, so the image needs no antecedent.
    """
    negated = asked.rng.random() < 0.5
    for thing, kind in asked.sole():
        own = getattr(thing, kind)
        others = {getattr(other, kind) for other in asked.scene.objects} - {own}
        if hard and not others:
            continue
        denied = [v for v in asked.kinds[kind] if v != own and (v in others) == hard]
        values = denied if negated else [own]
        if values:
            first, value = f"there is one {thing.shape}. this object is", asked.rng.choice(values)
            said, denial = f"{first} {value}", f"{first} not {value}"
            if negated:
                return _Row(denial, said, ("no", "yes"))
            return _Row(said, denial, ("yes", "no"))
    return None


def _coreference_standard(asked: _Asked) -> _Row | None:
    return _coreference(asked, hard=False)


def _coreference_hard(asked: _Asked) -> _Row | None:
    return _coreference(asked, hard=True)


def _foil_it(asked: _Asked) -> _Row | None:
    for first, name, second in asked.edges():
        for shape in asked.rng.sample(asked.shapes, len(asked.shapes)):
            other = first.having("shape", shape)
            if there(asked.scene, other) is False:
                texts = worded(first, name, second), worded(other, name, second)
                return _Row(*texts, (first.shape, shape))
    return None


PIECES: Mapping[str, Callable[[_Asked], _Row | None]] = {
    "existence": _existence,
    "plurals": _plurals,
    "counting-hard": _counting_hard,
    "counting-small-quant": _counting_small,
    "counting-adversarial": _counting_adversarial,
    "relations": _relations,
    "action-replacement": _action_replacement,
    "actant-swap": _actant_swap,
    "coreference-standard": _coreference_standard,
    "coreference-hard": _coreference_hard,
    "foil-it": _foil_it,
}
