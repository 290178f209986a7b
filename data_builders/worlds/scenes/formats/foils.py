"""A table of true sentences and their foils to train on.

In: training scenes. Out: the text of the csv.

For what Cola's queries, AR4T's pairs and captions teach nothing about: counts, absence, negation,
an added object, exchanged materials or sides, and attributes after their noun. Words alone tell
the true sentence of all additions, as it is the shorter one, and of nine in ten counts: scenes have
two or three objects more often than none or five. `vlmtune build table` reads the table.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from data_builders.phrases import INVERSE, PHRASES, both, with_article
from data_builders.text_files import csv_table
from data_builders.worlds.scenes.captions import PHOTO_PREFIXES, SIDES, clear_side, counting
from data_builders.worlds.scenes.formats.context import Form, SceneContext, Sentences, contexts
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.statements import (
    Noun,
    clear_relations,
    object_count,
    stated_kinds,
)

COLUMNS = ("image", "caption", "negative")
_LARGEST = 5  # number that is stated of objects


def table(
    images: Sequence[SceneImage], spec: WorldSpec, seed: int, count: int, long: int = 0
) -> str:
    """Returns the csv: at most `count` rows an image, each of another kind, and `long` long ones.

    One more states sides, where two objects lie on opposite ones. A long row has one to four
    sentences, against the same with one or two of them false. No sentence, true or false, states a
    forbidden composition of `spec`.
    """
    rows = []
    for image, context in contexts(images, spec, seed, "foils"):
        written = [write(context) for write in context.shuffled(_WRITERS)]
        short = [foil for foil in written if foil][:count]
        sides = [_sides(context)] if count else []
        several = dict.fromkeys(_sentences(context) for _ in range(long))
        for true, false in filter(None, (*short, *sides, *several)):
            rows.append((image.file, true, false))
    return csv_table(COLUMNS, rows)


def _missing(context: SceneContext) -> Noun | None:
    """A shape that the scene lacks, or one with a colour."""
    color = context.rng.choice((None,) * 4 + context.spec.colors)
    attributes = (("color", color),) if color else ()
    for shape in context.shuffled(context.spec.shapes):
        noun = Noun(shape, attributes)
        if context.allows(noun) and noun.absent_from(context.scene):
            return noun
    return None


def _shown(context: SceneContext) -> Noun:
    """The shape of an object, with an attribute or without one."""
    obj = context.rng.choice(context.scene.objects)
    kinds = [[], *([kind] for kind in stated_kinds(obj, context.kinds))]
    return Noun.of(obj, context.rng.choice(kinds))


def _count(context: SceneContext) -> Sentences | None:
    """Writes "there are three objects", "there are zero cubes", against another number."""
    shown, any_shape = _shown(context).shape, context.rng.choice(context.spec.shapes)
    shape = context.rng.choice((None, shown, any_shape))
    number = object_count(context.scene, shape)
    if number >= _LARGEST:
        return None
    other = context.rng.choice([n for n in range(_LARGEST + 1) if n != number])
    return counting(number, shape), counting(other, shape)


def _presence(context: SceneContext) -> Sentences | None:
    """Writes "there is a cube", "there is no torus", against the opposite."""
    missing = _missing(context) if context.rng.random() < 0.5 else None
    noun = missing or _shown(context)
    present, lacking = f"there is {with_article(noun)}", f"there is no {noun}"
    return (lacking, present) if missing else (present, lacking)


def _negation(context: SceneContext) -> Sentences | None:
    """Writes "there is a red cube", "there is a not red cube", one of which is true."""
    if not context.kinds:  # in a world of one colour, material and so on
        return None
    obj = context.rng.choice(context.scene.objects)
    kind = context.rng.choice(list(context.kinds))
    noun = Noun.of(obj, [kind]).replaced(kind, context.rng.choice(context.kinds[kind]))
    negated = noun.negating(kind)
    absent = noun.absent_from(context.scene)
    if not context.allows(noun) or absent == negated.absent_from(context.scene):
        return None
    true, false = (negated, noun) if absent else (noun, negated)
    return f"there is {with_article(true)}", f"there is {with_article(false)}"


def _addition(context: SceneContext) -> Sentences | None:
    """Writes "a red cube and a sphere", against "... and a torus" where no torus is."""
    missing = _missing(context)
    if missing is None or len(context.scene.objects) < 2:
        return None
    first, second = context.rng.sample(context.scene.objects, 2)
    text = both(Noun.of(first), Noun.of(second))
    return text, f"{text} and {with_article(missing)}"


def _exchanged(context: SceneContext) -> Sentences | None:
    """Writes "a metal cube and a rubber sphere" against both exchanged; not colours (Cola has)."""
    kinds = [kind for kind in context.kinds if kind != "color"]
    written = (context.exchanged(both, kind) for kind in context.shuffled(kinds))
    return next(filter(None, written), None)


def _sides(context: SceneContext) -> Sentences | None:
    """Writes "a cube on the left and a torus on the right of the picture", against exchanged ones.

    Captions show this wording (`captions.placement`) without a false one beside it: a model may
    then read each side with the noun before it or with the noun after it.
    """
    stated = context.rng.choice(([], ["color"]))
    prefix = context.rng.choice(PHOTO_PREFIXES)
    for sides in context.shuffled(SIDES):
        placed = _placed(context, stated, sides)
        if len(placed) == 2:
            (one, first), (other, second) = placed.items()
            true = f"{with_article(first)} on the {one} and {with_article(second)} on the {other}"
            false = f"{with_article(second)} on the {one} and {with_article(first)} on the {other}"
            return f"{prefix}{true} of the picture", f"{prefix}{false} of the picture"
    return None


def _placed(
    context: SceneContext, stated: Sequence[str], sides: tuple[str, str]
) -> dict[str, Noun]:
    """A noun of a sole object for each side that has one, in random order."""
    nouns: dict[str, Noun] = {}
    for obj in context.shuffled(context.scene.objects):
        noun = Noun.of(obj, stated)
        side = clear_side(context.scene, obj, sides)
        if side is not None and len(noun.referents(context.scene)) == 1:
            nouns.setdefault(side, noun)
    return nouns


def _textured(*nouns: Noun) -> str:
    """The wording of PUG's prompts, colours after the nouns."""
    named = (
        f"{with_article(replace(n, attributes=()))} textured with {n.get('color')}" for n in nouns
    )
    return f"this is a photo of {' and '.join(named)}"


def _relation(context: SceneContext) -> Sentences | None:
    """Writes "red cube behind cone", "there is no red cube behind a cone", one of which is true."""
    scene, kinds = context.scene, list(context.kinds)
    for i, name, j in context.shuffled(clear_relations(scene)):
        stated = context.rng.choice(([], ["color"], kinds))
        a, b = scene.objects[i], scene.objects[j]
        first, second = Noun.of(a, stated_kinds(a, stated)), Noun.of(b, stated_kinds(b, stated))
        if not len(first.referents(scene)) == len(second.referents(scene)) == 1:
            continue
        holds = context.rng.random() < 0.5
        phrase = PHRASES[name if holds else INVERSE[name]]
        forms = (
            f"{first} not {phrase} {second}",
            f"there is no {first} {phrase} {with_article(second)}",
        )
        plain, negated = f"{first} {phrase} {second}", context.rng.choice(forms)
        return (plain, negated) if holds else (negated, plain)
    return None


def _sentences(context: SceneContext) -> Sentences | None:
    """Writes one to four true sentences, against the same with one or two of them false."""
    relation = _relation(context)
    writers = context.shuffled((_relation, _relation, _presence, _negation, _exchanged))
    written = [relation, *(write(context) for write in writers)]
    fewest = 1 if relation else 2  # `table` has the other sentences one by one
    most = context.rng.randint(fewest, 4)
    foils = [foil for foil in written if foil][:most]
    if len(foils) < fewest:
        return None
    foils = context.shuffled(foils)
    count = min(len(foils), context.rng.randint(1, 2))
    false = context.rng.sample(range(len(foils)), count)
    texts = [foil[k in false] for k, foil in enumerate(foils)]
    return ". ".join(foil[0] for foil in foils), ". ".join(texts)


_WRITERS: tuple[Form, ...] = (
    *(_count, _presence, _negation, _addition, _exchanged),
    partial(SceneContext.exchanged, write=_textured),
)
