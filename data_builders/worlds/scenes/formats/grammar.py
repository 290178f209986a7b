"""A grammar: one scene in many sentences, each with a false counterpart.

In: training scenes. Out: the text of the csv.

The order of the objects, articles, negation and the words around a sentence are chosen apart, so
that they occur in all combinations. A false sentence has the form of the true one, so that hardly
anything but the scene decides between them: from words alone, a classifier chooses the true one in
at most 54 % of the rows of a kind. `held_out.wordings.csv` has forms that no sentence here has.
`vlmtune build table` reads the table.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import comb

from data_builders.phrases import INVERSE, PHRASES, with_article
from data_builders.text_files import csv_table
from data_builders.worlds.scenes.captions import counting
from data_builders.worlds.scenes.formats.context import Form, SceneContext, Sentences, contexts
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.statements import (
    Noun,
    colour_fields,
    exists,
    object_count,
    relation_holds,
)

COLUMNS = ("image", "caption", "negative")
LONGEST = 21  # words of a sentence: the shipped CLIP reads 22
_ATTEMPTS = 2  # sentences to try for each row
_LARGEST = 5  # number that is stated of objects

Relation = tuple[Noun, str, Noun]

# {a} and {b} are objects with an article that is sampled, {the_a} and {the_b} the same with "the",
# {noun} is the first without an article. {phrase} is the relation, {side} the same without "of",
# {inverse} its inverse.
_RELATED = (
    "{a} {no}{phrase} {b}",
    "there is {a} {no}{phrase} {b}",
    "{no}{phrase} {b} there is {a}",
    "{b} with {a} {no}{phrase} this",
    "{a} and {no}{inverse} this {b}",
    "there is {b} and {no}{phrase} this is {a}",
    "there is {b} and {a} is {no}{phrase} this",
    "{a} and {b} with {the_a} {no}{phrase} {the_b}",
    "with {a} {no}{side} there is {b}",
    "{a} is {no}the object {phrase} {b}",
    "{a} in the picture is {no}{phrase} {b}",
)
# Short and frequent: the second is in `_RELATED` too.
_AFFIRMED = ("{a} is {phrase} {b}", "{a} {phrase} {b}")
_DENIED = (
    "{a} and this is not {phrase} {b}",
    "there is no {noun} {phrase} {b}",
    "no {noun} {phrase} {b}",
    "{phrase} {b} there is no {noun}",
    "{b} with no {noun} {phrase} this",
    "{b} without {a} {phrase} this",
)
# {a} has the relation {first} to {b} and {second} to {c}.
_RELATED_TWICE = (
    "{a} {first} {b} and {the_a} is {second} {c}",
    "{b} and {c} and {a} {first} {the_b} and {second} {the_c}",
    "{first} {b} and {second} {c} there is {a}",
    "{a} with {b} {first_inverse} this and {c} {second_inverse} this",
    "there is {a} {first} {b} and this is {second} {c}",
    "{first} {b} there is {a} and {second} {c} there is {the_a}",
    "{a} is {first} {b} and {c} is {second_inverse} {the_a}",
    "{c} {second_inverse} {a} and {b} {first_inverse} {the_a}",
    "{c} and {a} {second} this and {first} {b}",
    "there is {a} and this is {first} {b} and {second} {c}",
    "{a} and this is {first} {b} and {second} {c}",
    "{a} is {first} {b} and this is {second} {c}",
    "{first} {b} there is {a} and this is {second} {c}",
)
_COLOURED = (
    "{a} and {b}",
    "there is {a} and {b}",
    "{a} with {b}",
    "{a} beside {b}",
    "a {shape} and this is {color} and a {other} and this is {hue}",
    "a {other} beside a {color} {shape} is {hue}",
    "a {shape} textured with {color} and {b}",
    "{a} and the {other} is {hue}",
    "a {color} object and this is a {shape} and {b}",
)
_COLOUR = (
    "there is {article} {shape} and this is {no}{color}",
    "{article} {shape} in the picture is {no}{color}",
    "{article} {no}{color} {shape}",
    "there is {article} {no}{color} {shape}",
    "{article} {shape} textured with {no}{color}",
    "{article} {shape} and this is {no}{color}",
    "{article} {shape} is {no}the {color} object",
    "there is {article} {shape} and the {shape} is {no}{color}",
)
_THREE = ("{a} and {b} and {c}", "there is {a} and {b} and {c}", "{a} with {b} and {c}")
_ABSENT = (
    "there is no {noun}",
    "a scene without {a}",
    "no {noun}",
    "no {noun} is in the picture",
    "this is a picture without {a}",
    "there is not {a}",
    "{beside} and no {noun}",
    "there is {beside} and no {noun}",
    "{a} is not in the picture",
    "no thing in the scene is {a}",
    "this is no picture of {a}",
    "not one of the objects is {a}",
    "{a} is not one of the objects",
    "not {a}",
)
_PRESENT = (
    "there is {a}",
    "a scene with {a}",
    "{a} is in the picture",
    "{beside} and {a}",
    "one of the objects is {a}",
    "{a} is one of the objects",
    "a thing in the scene is {a}",
)
_FRAMES = ("{}", "{}", "{}", "in the picture {}", "{} in the picture")
_PHRASE_FRAMES = (*_FRAMES, "a photo of {}", "a picture of {}", "this is a picture of {}")
# Around a phrase that is false.
_DENYING_FRAMES = ("this is no picture of {}", "no photo of {}")
_THINGS = ("object", "thing")
_PICTURES = ("picture", "scene")
_ARTICLES = ("a", "a", "the", "the", "this", "")


def _template(context: SceneContext, templates: Sequence[str]) -> str:
    """Chooses a template, with other words of the same meaning if the context has synonyms."""
    template = context.rng.choice(templates)
    if not context.synonyms:
        return template
    thing = context.rng.choice(_THINGS)
    picture = context.rng.choice(_PICTURES)
    template = re.sub("|".join(_THINGS), thing, template)
    # Nobody says "a scene of a cube".
    return re.sub(rf"({'|'.join(_PICTURES)})(?! of)", picture, template)


def _articles(context: SceneContext) -> list[str]:
    """Samples the articles of up to three objects, in a sentence and in its counterpart."""
    return context.rng.choices(_ARTICLES, k=3)


def _objects(articles: Sequence[str], *nouns: Noun) -> dict[str, str]:
    """The fields of a sentence about these objects."""
    fields = {}
    for name, noun, article in zip("abc", nouns, articles, strict=False):
        phrase = f"{article} {noun}".strip()
        if article == "a":
            phrase = with_article(noun)
        fields |= {name: phrase, f"the_{name}": f"the {noun}"}
    return fields


def table(
    images: Sequence[SceneImage], spec: WorldSpec, seed: int, count: int, synonyms: bool = False
) -> str:
    """Returns the csv: at most `count` rows an image.

    With `synonyms`, "object" and "thing" take turns, and so do "picture" and "scene".

    No sentence, true or false, states a forbidden composition of `spec`.
    """
    rows = []
    writers, weights = zip(*_WRITERS.items(), strict=True)
    for image, context in contexts(images, spec, seed, "grammar"):
        context = replace(context, synonyms=synonyms)
        written: dict[Sentences, None] = {}
        for write in context.rng.choices(writers, weights, k=_ATTEMPTS * count):
            sentences = write(context)
            if sentences is not None and len(written) < count and _fits(sentences):
                written[sentences] = None
        for true, false in written:
            rows.append((image.file, true, false))
    return csv_table(COLUMNS, rows)


def _fits(sentences: Sentences) -> bool:
    true, false = sentences
    return true != false and max(len(true.split()), len(false.split())) <= LONGEST


def _framed(context: SceneContext, true: str, false: str) -> Sentences:
    frames = _FRAMES if _is_clause(true) else _PHRASE_FRAMES
    frame = context.rng.choice(frames)
    return frame.format(true), frame.format(false)


def _is_clause(text: str) -> bool:
    return "is" in text.split()


def _brief(context: SceneContext, noun: Noun) -> Noun:
    """The noun, or at times its shape alone where only one object has it."""
    bare = Noun(noun.shape)
    alone = len(bare.referents(context.scene)) == 1
    return bare if alone and context.rng.random() < 0.35 else noun


def _relation(context: SceneContext) -> Sentences | None:
    """A relation, against a false one; or a relation that is denied, against a true one denied."""
    edge = next(context.one_way_relations(), None)
    if edge is None:
        return None
    first, name, second = edge
    holds = _brief(context, first), name, _brief(context, second)
    fails = _broken(context, holds)
    articles = _articles(context)
    denied = context.rng.random() < 0.4
    if denied and {fails[0], fails[2]} != {holds[0], holds[2]}:
        # What is denied of two objects says that they are there.
        fails = holds[0], INVERSE[name], holds[2]
    others = _DENIED if denied else _AFFIRMED
    template = _template(context, _RELATED + others)
    true = _related(template, articles, holds, denied)
    false = _related(template, articles, fails, denied)
    if denied:
        true, false = false, true
    return _framed(context, true, false)


def _broken(context: SceneContext, relation: Relation) -> Relation:
    """The relation with its objects exchanged, inverted, replaced, or with colours exchanged."""
    first, name, second = relation
    change = context.rng.choice(("objects", "inverse", "other", "colours"))
    if change == "objects":
        return second, name, first
    if change == "other":
        other = context.false_relation(first, second)
        if other is not None:
            return first, other, second
    colors = first.get("color"), second.get("color")
    if change == "colours" and colors[0] and colors[1]:
        crossed = first.replaced("color", colors[1]), second.replaced("color", colors[0])
        lacking = relation_holds(context.scene, crossed[0], name, crossed[1]) is False
        if lacking and context.allows(*crossed):
            return crossed[0], name, crossed[1]
    return first, INVERSE[name], second


def _related(template: str, articles: Sequence[str], relation: Relation, denied: bool) -> str:
    first, name, second = relation
    phrase = PHRASES[name]
    no = "not " if denied else ""
    return template.format(
        **_objects(articles, first, second),
        noun=first,
        no=no,
        phrase=phrase,
        side=phrase.removesuffix(" of"),
        inverse=PHRASES[INVERSE[name]],
    )


def _two_relations(context: SceneContext) -> Sentences | None:
    """Two relations of one object to two others, against one or both of them inverted."""
    nouns = [Noun.of(obj) for obj in context.scene.objects]
    articles = _articles(context)
    template = _template(context, _RELATED_TWICE)
    for (i, first, j), (_, second, m) in context.two_relations():
        named = [_brief(context, nouns[number]) for number in (i, j, m)]
        # Of two objects of one description the other may have the false relations.
        if any(len(noun.referents(context.scene)) > 1 for noun in named):
            continue
        objects = _objects(articles, *named)
        true = first, second
        inverted = INVERSE[first], INVERSE[second]
        one_inverted = (inverted[0], second), (first, inverted[1])
        false = context.rng.choice((*one_inverted, inverted))
        return _related_twice(template, objects, true), _related_twice(template, objects, false)
    return None


def _related_twice(template: str, objects: Mapping[str, str], names: tuple[str, str]) -> str:
    first, second = names
    return template.format(
        **objects,
        first=PHRASES[first],
        second=PHRASES[second],
        first_inverse=PHRASES[INVERSE[first]],
        second_inverse=PHRASES[INVERSE[second]],
    )


def _colours(context: SceneContext) -> Sentences | None:
    """Two objects with their colours, against the colours exchanged."""
    articles = _articles(context)
    template = _template(context, _COLOURED)

    def write(first: Noun, second: Noun) -> str:
        return template.format(**_objects(articles, first, second), **colour_fields(first, second))

    sentences = context.exchanged(write)
    if sentences is None:
        return None
    true, false = sentences
    if not _is_clause(true) and context.rng.random() < 0.2:
        frame = context.rng.choice(_DENYING_FRAMES)
        return frame.format(false), frame.format(true)
    return _framed(context, true, false)


def _colour(context: SceneContext) -> Sentences | None:
    """The colour of the only object of its shape, or that it lacks a colour."""
    template = _template(context, _COLOUR)
    denied = context.rng.random() < 0.5
    shown = {obj.color for obj in context.scene.objects}
    for obj in context.sole_objects():
        others = context.other_colours(obj)
        if not others:
            continue
        # The colour of another object is harder to tell from this one's.
        near = [color for color in others if color in shown]
        if near and context.rng.random() < 0.7:
            others = near
        other = context.rng.choice(others)
        fields = {
            "article": context.rng.choice(("a", "the")),
            "shape": obj.shape,
            "no": "not " if denied else "",
        }
        true = template.format(**fields, color=obj.color)
        false = template.format(**fields, color=other)
        if denied:
            true, false = false, true
        return _framed(context, true, false)
    return None


def _three(context: SceneContext) -> Sentences | None:
    """Three objects of different shapes and colours, against their colours permuted."""
    objects = context.shuffled(context.scene.objects)[:3]
    nouns = [Noun.of(obj) for obj in objects]
    colors = [obj.color for obj in objects]
    if len({obj.shape for obj in objects}) < 3 or len(set(colors)) < 3:
        return None
    articles = _articles(context)
    template = _template(context, _THREE)
    # The first permutation is the true one.
    for order in context.shuffled(list(permutations(colors))[1:]):
        false = [n.replaced("color", color) for n, color in zip(nouns, order, strict=True)]
        if context.allows(*false) and exists(context.scene, *false) is False:
            true = template.format(**_objects(articles, *nouns))
            return true, template.format(**_objects(articles, *false))
    return None


def _presence(context: SceneContext) -> Sentences | None:
    """That an object is there or is not, against the opposite of another."""
    rng = context.rng
    denied = rng.random() < 0.6
    templates = _ABSENT if denied else _PRESENT
    template = _template(context, templates)
    kinds = rng.choice(((), ("color",), ("color",)))
    lacking = _lacking(context, bool(kinds))
    if lacking is None or len(context.scene.objects) < 2:
        return None
    one, other = rng.sample(context.scene.objects, 2)
    shown = Noun.of(one, kinds)
    beside = with_article(Noun.of(other))
    sentences = {}
    for noun in (shown, lacking):
        sentences[noun] = template.format(a=with_article(noun), noun=noun, beside=beside)
    if denied:
        return sentences[lacking], sentences[shown]
    return sentences[shown], sentences[lacking]


def _lacking(context: SceneContext, coloured: bool) -> Noun | None:
    """An object that the scene lacks, with a colour or without one."""
    for shape in context.shuffled(context.spec.shapes):
        noun = Noun(shape)
        if coloured:
            noun = noun.replaced("color", context.rng.choice(context.spec.colors))
        if context.allows(noun) and noun.absent_from(context.scene):
            return noun
    return None


def _count(context: SceneContext) -> Sentences | None:
    """A number of objects, against another, which is drawn as the numbers of scenes are."""
    shape = context.rng.choice((None, *context.spec.shapes))
    number = object_count(context.scene, shape)
    if number > _LARGEST:
        return None
    numbers = range(_LARGEST + 1)
    weights = [_frequency(context.spec, n, shape is not None) for n in numbers]
    (other,) = context.rng.choices(numbers, weights)
    # Without a row for equal numbers, true and false sentences have the same numbers as often.
    if other == number:
        return None
    template = context.rng.choice(("{}", "{} in the picture"))
    return template.format(counting(number, shape)), template.format(counting(other, shape))


def _frequency(spec: WorldSpec, number: int, of_shape: bool) -> float:
    """How often scenes have so many objects, or so many of a shape; up to a factor."""
    sizes = range(spec.min_objects, spec.max_objects + 1)
    if not of_shape:
        return float(number in sizes)
    chance = 1 / len(spec.shapes)  # that an object has the shape
    total = 0.0
    for size in sizes:
        total += comb(size, number) * chance**number * (1 - chance) ** (size - number)
    return total


_WRITERS: Mapping[Form, float] = {
    _relation: 4.0,
    _two_relations: 1.5,
    _colours: 1.5,
    _colour: 1.5,
    _three: 1.0,
    _presence: 2.0,
    _count: 0.7,
}
