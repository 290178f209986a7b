"""Sentences in forms that no training text has, each with a false one.

In: a scene. Out: a true sentence and a false one of the same form, or None. Never: a word that the
shipped CLIP lacks. It has no verb but "is" and "are" and no relative pronoun, so passives and
"which" are missing: "the cube behind the cone is red" stands for a relative clause, "the cube and
the cone are green" for "has the same colour as". `held_out` has eight further forms.
"""

from collections.abc import Mapping
from functools import partial
from itertools import permutations

from data_builders.phrases import INVERSE, PHRASES, both, with_article
from data_builders.worlds.scenes.formats.context import Form, SceneContext, Sentences
from data_builders.worlds.scenes.held_out import FORMS, between, one_side
from data_builders.worlds.scenes.scene import GROUND_RELATIONS
from data_builders.worlds.scenes.statements import (
    Edge,
    Noun,
    clear_relations,
    colour_fields,
    relation_holds,
)


def of_colours(context: SceneContext, template: str) -> Sentences | None:
    """Writes the colours of two objects, against both exchanged; `{shape}` and `{color}` are one's.

    `{other}` and `{hue}` are those of the other object.
    """
    return context.exchanged(lambda *nouns: template.format(**colour_fields(*nouns)))


def _not_another_colour(context: SceneContext) -> Sentences | None:
    """Writes "the cube is red and not blue", against both colours exchanged."""
    for obj in context.sole_objects():
        other = context.rng.choice(context.other_colours(obj))
        template = f"the {obj.shape} is {{}} and not {{}}"
        return template.format(obj.color, other), template.format(other, obj.color)
    return None


def floor_edges(context: SceneContext) -> list[Edge]:
    """Returns the relations on the floor that stand out, in random order."""
    edges = context.shuffled(clear_relations(context.scene))
    return [edge for edge in edges if edge[1] in GROUND_RELATIONS]


def _related_subject(context: SceneContext) -> Sentences | None:
    """Writes "the red cube behind the cone is to the left of the torus", the last one inverted."""
    nouns = [Noun.of(obj) for obj in context.scene.objects]
    for (i, name, j), (k, other, m) in permutations(floor_edges(context), 2):
        if i == k and j != m:
            subject = f"the {nouns[i]} {PHRASES[name]} the {nouns[j]}"
            template = f"{subject} is {{}} the {nouns[m]}"
            return template.format(PHRASES[other]), template.format(PHRASES[INVERSE[other]])
    return None


def of_related(context: SceneContext, template: str, kind: str) -> Sentences | None:
    """Writes what colour, or so, an object has by its relation, against that of a third object.

    "the thing {phrase} the {reference} is {value}" gives "the thing behind the cone is red".
    """
    objects = context.scene.objects
    for i, name, j in floor_edges(context):
        reference = Noun.of(objects[j])
        for other in context.shuffled(objects):
            named = objects[i], objects[j], other
            values = [getattr(obj, kind) for obj in named]
            # Both sentences name two values of the scene, so that words alone do not decide.
            if len(set(values)) < 3:
                continue
            # Nothing of the false value may be there, nor nearly be there.
            alike = [Noun.of(obj) for obj in objects if getattr(obj, kind) == values[2]]
            truths = [relation_holds(context.scene, noun, name, reference) for noun in alike]
            if any(truth is not False for truth in truths):
                continue
            write = partial(template.format, phrase=PHRASES[name], reference=reference)
            return write(value=values[0]), write(value=values[2])
    return None


def _two_related(context: SceneContext) -> Sentences | None:
    """Writes "a red cube and a cone are behind a torus", against the last two exchanged."""
    nouns = [with_article(Noun.of(obj)) for obj in context.scene.objects]
    for (i, name, j), (k, other, m) in permutations(floor_edges(context), 2):
        if name == other and j == m and i != k:
            template = f"{nouns[i]} and {{}} are {PHRASES[name]} {{}}"
            return template.format(nouns[k], nouns[j]), template.format(nouns[j], nouns[k])
    return None


def _same_colour(context: SceneContext) -> Sentences | None:
    """Writes "the cube and the cone are green", against the cube and an object of another colour.

    Each shape has one object.
    """
    for first, second, other in permutations(context.sole_objects(), 3):
        stated = (first.color, other.shape)
        if first.color == second.color != other.color and stated not in context.spec.forbidden:
            template = f"the {first.shape} and the {{}} are {first.color}"
            return template.format(second.shape), template.format(other.shape)
    return None


def shown_and_missing(context: SceneContext) -> tuple[list[str], list[str]]:
    """Returns the shapes that the scene has, and those that it lacks, both in random order."""
    shown = {obj.shape for obj in context.scene.objects}
    shuffled = context.shuffled(context.spec.shapes)
    present = [shape for shape in shuffled if shape in shown]
    return present, [shape for shape in shuffled if shape not in shown]


def _no_object(context: SceneContext) -> Sentences | None:
    """Writes "no object is a torus", against a shape that is there."""
    present, missing = shown_and_missing(context)
    if not missing:
        return None
    return f"no object is a {missing[0]}", f"no object is a {present[0]}"


def _neither(context: SceneContext) -> Sentences | None:
    """Writes "there is no torus and no cone", against one of them that is there."""
    present, missing = shown_and_missing(context)
    if len(missing) < 2:
        return None
    true = f"there is no {missing[0]} and no {missing[1]}"
    first, second = context.shuffled((missing[0], present[0]))
    return true, f"there is no {first} and no {second}"


def of_shape(context: SceneContext, shape: str) -> Sentences | None:
    """Writes "a red torus and a blue cone" of a torus and another, against colours exchanged."""
    for (true, false), *_ in context.exchanges("color"):
        if shape in [noun.shape for noun in true]:
            return both(*true), both(*false)
    return None


WORDINGS: Mapping[str, Form] = {
    **{name: form for name, form in FORMS.items() if name != "absent"},
    "between": between,
    "colour first": partial(of_colours, template="{color} is the {shape} and {hue} is the {other}"),
    "in a colour": partial(of_colours, template="a {shape} in {color} and a {other} in {hue}"),
    "same colour": _same_colour,
    "two related": _two_related,
    "related subject": _related_subject,
    "related thing": partial(
        of_related, template="the thing {phrase} the {reference} is {value}", kind="color"
    ),
    "this colour, not that": _not_another_colour,
    "this side, not that": partial(one_side, template="the {a} is {holds} and not {fails} the {b}"),
    "no object": _no_object,
    "neither": _neither,
}
