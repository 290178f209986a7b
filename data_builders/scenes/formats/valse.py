"""The pieces of VALSE (Parcalabescu et al. 2022, section 3) that the world can express.

Existence, plurals, counting, relations, actant swap and FOIL it; no action replacement and no
coreference, as nobody acts and nobody asks.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_builders.scenes.captions import NUMBERS, PHRASES, PLURALS
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.formats.eqben import counting_of
from data_builders.scenes.grammar import Scene
from data_builders.scenes.statements import (
    Noun,
    counted,
    edges,
    noun,
    related,
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
    """A scene, the shapes of its world and a source of chance."""

    scene: Scene
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


def pieces(
    drawn: Sequence[Drawn], shapes: Sequence[str], count: int, seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the contents of the files by piece, at most `count` rows each.

    Foils are false by the scene graph, so all three annotators chose the caption.

    Args:
        drawn: The scenes, of which each gives at most one row a piece.
        shapes: The shapes of the world.
        count: Most rows of a piece.
        seed: Of the choices.
    """
    content: dict[str, dict[str, dict[str, Any]]] = {}
    for piece, make in PIECES.items():
        rows: dict[str, dict[str, Any]] = {}
        for d in drawn:
            rng = random.Random(f"{seed}:valse {piece}:{d.file}")
            row = make(_Asked(d.scene, shapes, rng))
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
    "actant-swap": _actant_swap,
    "foil-it": _foil_it,
}
