"""Training scenes go in, a table of true sentences and their foils comes out.

For what Cola's queries, AR4T's pairs and captions teach nothing about: counts, absence, negation,
an added object, exchanged materials, and colours after their noun. `vlmtune build table` reads it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from data_builders.scenes.captions import NUMBERS, PHRASES, both, counting, with_article
from data_builders.scenes.formats.context import SceneContext
from data_builders.scenes.formats.files import csv_table
from data_builders.scenes.image_files import SceneImage
from data_builders.scenes.sampling import WorldSpec
from data_builders.scenes.scene import GROUND_RELATIONS, Scene
from data_builders.scenes.statements import (
    Noun,
    absent,
    describe,
    exchange,
    exists,
    object_count,
    relation_holds,
    stated_attributes,
    stated_kinds,
)

COLUMNS = ("image", "caption", "negative")
_LARGEST = 5  # number that is stated of objects
Foil = tuple[str, str]  # a true sentence and a false one


def table(images: Sequence[SceneImage], spec: WorldSpec, seed: int, count: int) -> str:
    """Returns the csv: at most `count` rows an image, each of another kind.

    No sentence, true or false, states a forbidden composition of `spec`.
    """
    rows = []
    for image in images:
        rng = random.Random(f"{seed}:foils:{image.file}")
        context = SceneContext(image.scene, stated_attributes(spec), spec.shapes, rng)
        written = (write(context, spec) for write in context.shuffled(_WRITERS))
        for true, false in [foil for foil in written if foil][:count]:
            rows.append({"image": image.file, "caption": true, "negative": false})
    return csv_table(COLUMNS, rows)


def _allowed(noun: Noun, spec: WorldSpec) -> bool:
    return (noun.get("color"), noun.shape) not in spec.forbidden


def _missing(context: SceneContext, spec: WorldSpec) -> Noun | None:
    """A shape that the scene lacks, or one with a colour."""
    colors = (None,) * 4 + tuple(context.kinds["color"])
    color, shapes = context.rng.choice(colors), context.shuffled(context.shapes)
    nouns = [Noun(shape, (("color", color),) if color else ()) for shape in shapes]
    return next((n for n in nouns if _allowed(n, spec) and absent(context.scene, n)), None)


def _shown(context: SceneContext) -> Noun:
    """The shape of an object, with an attribute or without one."""
    obj = context.rng.choice(context.scene.objects)
    kinds = [[], *([kind] for kind in stated_kinds(obj, context.kinds))]
    return describe(obj, context.rng.choice(kinds))


def _count(context: SceneContext, spec: WorldSpec) -> Foil | None:
    """Writes "there are three objects", "there is one cube", against another number."""
    del spec
    shape = None if context.rng.random() < 0.5 else _shown(context).shape
    number = object_count(context.scene, shape)
    if number >= min(_LARGEST, len(NUMBERS)):
        return None
    other = context.rng.choice([n for n in range(1, _LARGEST + 1) if n != number])
    return counting(number, shape), counting(other, shape)


def _presence(context: SceneContext, spec: WorldSpec) -> Foil | None:
    """Writes "there is a cube", "there is no torus", against the opposite."""
    missing = _missing(context, spec) if context.rng.random() < 0.5 else None
    noun = missing or _shown(context)
    texts = f"there is {with_article(noun)}", f"there is no {noun}"
    return texts[::-1] if missing else texts


def _negation(context: SceneContext, spec: WorldSpec) -> Foil | None:
    """Writes "a red cube", "a not red cube", one of which is true, alone or beside another noun."""
    obj, *others = context.shuffled(context.scene.objects)
    kind = context.rng.choice(list(context.kinds))
    noun = describe(obj, [kind]).replaced(kind, context.rng.choice(context.kinds[kind]))
    nouns, other = (noun, noun.negating(kind)), describe(others[0]) if others else None
    if not _allowed(noun, spec):
        return None
    form = context.rng.choice(("there is", "and", "related"))
    relation = context.rng.choice(GROUND_RELATIONS)
    if other is None or form == "there is":
        truths = [exists(context.scene, n) for n in nouns]
        texts = [f"there is {with_article(n)}" for n in nouns]
    elif form == "and":
        truths = [exists(context.scene, n, other) for n in nouns]
        texts = [both(n, other) for n in nouns]
    else:
        truths = [relation_holds(context.scene, n, relation, other) for n in nouns]
        texts = [f"{n} {PHRASES[relation]} {other}" for n in nouns]
    if sorted(map(str, truths)) != ["False", "True"]:
        return None
    true, false = texts if truths[0] else texts[::-1]
    return true, false


def _addition(context: SceneContext, spec: WorldSpec) -> Foil | None:
    """Writes "a red cube and a sphere", against "... and a torus" where no torus is."""
    missing = _missing(context, spec)
    if missing is None or len(context.scene.objects) < 2:
        return None
    first, second = context.rng.sample(context.scene.objects, 2)
    text = both(describe(first), describe(second))
    return text, f"{text} and {with_article(missing)}"


def _exchanged(context: SceneContext, spec: WorldSpec) -> Foil | None:
    """Writes two nouns with an attribute each, against the attributes exchanged.

    As "the metal cube and the rubber torus" (ARO), or with colours after the nouns (PUG).
    """
    kind = context.rng.choice(list(context.kinds))
    write = _textures if kind == "color" else _the
    for i, j in context.shuffled(_pairs(context.scene)):
        exchanged = exchange(context.scene, i, j, kind)
        if exchanged and all(_allowed(noun, spec) for noun in exchanged[1]):
            return write(*exchanged[0]), write(*exchanged[1])
    return None


def _pairs(scene: Scene) -> list[tuple[int, int]]:
    indices = range(len(scene.objects))
    return [(i, j) for i in indices for j in indices if i != j]


def _textures(*nouns: Noun) -> str:
    named = (
        f"{with_article(replace(n, attributes=()))} textured with {n.get('color')}" for n in nouns
    )
    return f"this is a photo of {' and '.join(named)}"


def _the(first: Noun, second: Noun) -> str:
    return f"the {first} and the {second}"


_Writer = Callable[[SceneContext, WorldSpec], Foil | None]
_WRITERS: tuple[_Writer, ...] = (_count, _presence, _negation, _addition, _exchanged)
