"""CREPE's csv files (Ma et al. 2023, sections 3 and 4): productivity and systematicity."""

import csv
import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from data_builders.scenes.compositions import Pair
from data_builders.scenes.drawing import Drawn
from data_builders.scenes.formats.crepe_captions import Caption, draw, negated, replaced, swapped
from data_builders.scenes.grammar import Scene
from data_builders.scenes.statements import Noun, article, noun, there

TYPES = ("atom", "swap", "negate")
COMPLEXITIES = tuple(range(4, 13))
NEGATIVES = 5
CORPUS = "laion"  # the pre-training set that stands for the world's training scenes
BOX = ("x", "y", "width", "height")
PRODUCTIVITY = ("image_id", "caption", "n", "n_objects", "n_relations", "n_attributes",
                "n_connected_components", "hard_negs", *BOX)  # fmt: skip
SYSTEMATICITY = ("region_id", "caption", *BOX, "image_id", "valid_hard_negs_atom",
                 "valid_hard_negs_comp", "valid_hard_negs_combined")  # fmt: skip
Row = dict[str, Any]


def image_id(d: Drawn) -> int:
    """Returns the number of an image: `VG_100K/<number>.jpg`."""
    return d.index + 1


def productivity(
    drawn: Sequence[Drawn],
    kinds: Mapping[str, Sequence[str]],
    shapes: Sequence[str],
    count: int,
    seed: int,
) -> dict[tuple[str, int], list[Row]]:
    """Returns rows by type and number of atoms, `count` of each type where the scenes have them.

    The numbers of atoms take turns. An item has five negatives, all false of the image, and its
    box is the whole image.

    Args:
        drawn: The scenes.
        kinds: Which attributes are said, and their values.
        shapes: The shapes of the world.
        count: Most items of a type.
        seed: Of the choices.
    """
    rows: dict[tuple[str, int], list[Row]] = {cell: [] for cell in product(TYPES, COMPLEXITIES)}
    for kind in TYPES:
        for k in range(count):
            atoms = COMPLEXITIES[k % len(COMPLEXITIES)]
            for step in range(len(drawn)):
                d = drawn[(k + step) % len(drawn)]
                rng = random.Random(f"{seed}:crepe {kind}:{atoms}:{d.file}")
                row = _item(d, kind, atoms, kinds, shapes, rng)
                if row is not None and row not in rows[kind, atoms]:
                    rows[kind, atoms].append(row)
                    break
    return rows


def _item(
    d: Drawn,
    kind: str,
    atoms: int,
    kinds: Mapping[str, Sequence[str]],
    shapes: Sequence[str],
    rng: random.Random,
) -> Row | None:
    caption = draw(d.scene, atoms, kinds, rng)
    if caption is None:
        return None
    makers = {
        "atom": lambda: replaced(caption, kinds, shapes),
        "swap": lambda: swapped(caption),
        "negate": lambda: negated(caption),
    }
    negatives = _false(makers[kind](), d.scene)
    if len(negatives) < NEGATIVES:
        return None
    attributes = sum(len(one.said) for one in caption.nouns)
    return {
        "image_id": image_id(d),
        "caption": str(caption),
        "n": atoms,
        "n_objects": len(caption.nouns),
        "n_relations": len(caption.edges),
        "n_attributes": attributes,
        "n_connected_components": _components(caption),
        "hard_negs": repr(rng.sample(negatives, NEGATIVES)),
        **_whole(d),
    }


def _false(captions: Iterable[Caption], scene: Scene) -> list[str]:
    return list(dict.fromkeys(str(one) for one in captions if one.holds(scene) is False))


def _components(caption: Caption) -> int:
    group = list(range(len(caption.nouns)))
    for i, _, j in caption.edges:
        group = [group[i] if g == group[j] else g for g in group]
    return len(set(group))


def systematicity(
    drawn: Sequence[Drawn],
    compounds: frozenset[Pair],
    colors: Sequence[str],
    shapes: Sequence[str],
    count: int,
    seed: int,
) -> Iterator[Row]:
    """Yields rows about objects of the given compounds, at most `count`.

    "a red cube"; the atom negatives replace one word, the negatives of compounds spread the two
    words over two objects that are not there: "a red cone and a blue cube".

    Args:
        drawn: The scenes, of which each gives at most one item.
        compounds: The (color, shape) pairs: those that training shows, or those it never does.
        colors: The colours of the world.
        shapes: The shapes of the world.
        count: Most items.
        seed: Of the choices.
    """
    made = 0
    for d in drawn:
        rng = random.Random(f"{seed}:crepe systematicity:{d.file}")
        things = [o for o in d.scene.objects if (o.color, o.shape) in compounds]
        if not things or made == count:
            continue
        said = noun(rng.choice(things))
        others = [c for c in colors if c != said.get("color")]
        recolored = [said.having("color", c) for c in others]
        reshaped = [said.having("shape", s) for s in shapes if s != said.shape]
        atom = [article(n) for n in (*recolored, *reshaped) if there(d.scene, n) is False]
        comp = [
            f"{article(one)} and {article(other)}"
            for one, other in _dealt(reshaped, recolored, rng)
            if there(d.scene, one) is False and there(d.scene, other) is False
        ]
        if not atom or not comp:
            continue
        atom, comp = (rng.sample(texts, min(NEGATIVES, len(texts))) for texts in (atom, comp))
        names = [f"valid_hard_negs_{name}" for name in ("atom", "comp", "combined")]
        lists = map(repr, (atom, comp, [*atom, *comp]))
        row = {"region_id": made, "caption": article(said), **_whole(d), "image_id": image_id(d)}
        yield {**row, **dict(zip(names, lists, strict=True))}
        made += 1


def _dealt(
    first: Sequence[Noun], second: Sequence[Noun], rng: random.Random
) -> list[tuple[Noun, Noun]]:
    pairs = list(product(first, second))
    return [
        (one, other) if rng.random() < 0.5 else (other, one)
        for one, other in rng.sample(pairs, len(pairs))
    ]


def table(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Returns a csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _whole(d: Drawn) -> Row:
    return dict(zip(BOX, (0, 0, d.size, d.size), strict=True))
