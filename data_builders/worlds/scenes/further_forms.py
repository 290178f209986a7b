"""Fourteen more forms of sentences, written after all choices of methods and training data.

In: a scene. Out: a true sentence and a false one of the same form, or None. Never: a form that
training or `transfer_forms` has.

No option, text or optimizer was chosen by these sentences, so they tell how far the results on
`transfer_forms` were chosen by its own.
"""

from collections.abc import Mapping
from functools import partial
from itertools import permutations

from data_builders.phrases import INVERSE, PHRASES, with_article
from data_builders.worlds.scenes.formats.context import Form, SceneContext, Sentences
from data_builders.worlds.scenes.statements import Noun
from data_builders.worlds.scenes.transfer_forms import (
    floor_edges,
    of_colours,
    of_related,
    shown_and_missing,
)


def _two_sides(context: SceneContext, template: str) -> Sentences | None:
    """Names what is on either side, against the two exchanged."""
    for first, name, second in context.one_way_relations():
        if name in ("left", "right"):
            a, b = with_article(first), with_article(second)
            other = INVERSE[name]
            true = template.format(a=a, b=b, side=name, other=other)
            return true, template.format(a=b, b=a, side=name, other=other)
    return None


def _coloured_objects(first: Noun, second: Noun) -> str:
    """Writes "the red object is a cube and the blue object is a sphere"."""
    stated = [f"the {noun.get('color')} object is a {noun.shape}" for noun in (first, second)]
    return " and ".join(stated)


def _there_and_not_there(context: SceneContext, template: str) -> Sentences | None:
    """Names a shape that is there and one that is not, against the two exchanged."""
    shown, missing = shown_and_missing(context)
    if not missing:
        return None
    return template.format(shown[0], missing[0]), template.format(missing[0], shown[0])


def _related_shape(context: SceneContext) -> Sentences | None:
    """Writes "the cube behind the cone is red", against the colour of the cone."""
    sole = {obj.shape: obj for obj in context.sole_objects()}
    objects = context.scene.objects
    for i, name, j in floor_edges(context):
        first, second = objects[i], objects[j]
        exchangeable = first.shape != second.shape and second.color in context.other_colours(first)
        if exchangeable and first.shape in sole:
            template = f"the {first.shape} {PHRASES[name]} the {second.shape} is {{}}"
            return template.format(first.color), template.format(second.color)
    return None


def _not_of_shape(context: SceneContext, template: str) -> Sentences | None:
    """Denies a shape that no object of a colour has, against a shape that one has."""
    objects = context.shuffled(context.scene.objects)
    for obj in objects:
        of_colour = {other.shape for other in objects if other.color == obj.color}
        # No scene of training's words has a forbidden composition: denying it is always true.
        others = []
        for other in objects:
            named = Noun.of(obj).replaced("shape", other.shape)
            if other.shape not in of_colour and context.allows(named):
                others.append(other.shape)
        if len(of_colour) == 1 and others:
            false = template.format(color=obj.color, shape=obj.shape)
            return template.format(color=obj.color, shape=others[0]), false
    return None


def _other_is_not(context: SceneContext) -> Sentences | None:
    """Writes "the cube is red and the sphere is not", against the two exchanged."""
    for first, second in permutations(context.sole_objects(), 2):
        if first.color in context.other_colours(second):
            template = f"the {{}} is {first.color} and the {{}} is not"
            true = template.format(first.shape, second.shape)
            return true, template.format(second.shape, first.shape)
    return None


def _related_colours(context: SceneContext) -> Sentences | None:
    """Writes "the red thing is behind the blue thing", against the relation inverted."""
    objects = context.scene.objects
    colors = [obj.color for obj in objects]
    for i, name, j in floor_edges(context):
        named = colors[i], colors[j]
        if len(set(named)) == 2 and all(colors.count(color) == 1 for color in named):
            template = f"the {named[0]} thing is {{}} the {named[1]} thing"
            return template.format(PHRASES[name]), template.format(PHRASES[INVERSE[name]])
    return None


FURTHER: Mapping[str, Form] = {
    "to either side": partial(_two_sides, template="{a} to the {side} and {b} to the {other}"),
    "on either side": partial(
        _two_sides, template="on the {side} is {a} and on the {other} is {b}"
    ),
    "one thing": partial(
        of_colours, template="one thing is a {color} {shape} and one thing is a {hue} {other}"
    ),
    "coloured objects": partial(SceneContext.exchanged, write=_coloured_objects),
    "next to": partial(of_colours, template="a {color} {shape} next to a {hue} {other}"),
    "colours in order": partial(
        of_colours, template="a {shape} and a {other} in {color} and {hue}"
    ),
    "there, not there": partial(_there_and_not_there, template="there is a {} and not a {}"),
    "one is not there": partial(
        _there_and_not_there, template="a {} is in the picture and a {} is not"
    ),
    "related shape": _related_shape,
    "shape there": partial(
        of_related, template="the shape {phrase} the {reference} is a {value}", kind="shape"
    ),
    "not of a shape": partial(_not_of_shape, template="the {color} object is not a {shape}"),
    "no coloured object": partial(_not_of_shape, template="no {color} object is a {shape}"),
    "the other is not": _other_is_not,
    "related colours": _related_colours,
}
