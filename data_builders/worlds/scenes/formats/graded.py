"""A table of captions that are true of an image to five degrees, to train on their order.

In: training scenes. Out: the text of the csv.

An exact caption names two objects, with a relation or without one. A partial one states less of
them. The false ones have one attribute wrong, one object wrong, or are of another scene that has
none of their objects here. `vlmtune build table` reads the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from data_builders.text_files import csv_table
from data_builders.worlds.scenes.formats.context import SceneContext, contexts
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.sampling import WorldSpec
from data_builders.worlds.scenes.statements import (
    Noun,
    Statement,
    clear_relations,
    stated_kinds,
)

COLUMNS = ("image", "exact", "partial", "wrong_attribute", "wrong_object", "unrelated")
_ATTEMPTS = 4  # exact captions to try for each row, and other scenes to try for each of them


Scenes = Sequence[SceneImage]


def table(images: Scenes, spec: WorldSpec, seed: int, count: int) -> str:
    """Returns the csv: at most `count` rows an image, each about other words.

    No caption, true or false, states a forbidden composition of `spec`.
    """
    rows = []
    for image, context in contexts(images, spec, seed, "graded"):
        written: dict[str, tuple[Statement, ...]] = {}
        for _ in range(_ATTEMPTS * count):
            graded = _graded(context, images)
            if graded is not None and len(written) < count:
                written.setdefault(str(graded[0]), graded)
        for statements in written.values():
            rows.append((image.file, *map(str, statements)))
    return csv_table(COLUMNS, rows)


def _graded(context: SceneContext, images: Scenes) -> tuple[Statement, ...] | None:
    """The five statements in their order, or None if one of them is not found."""
    exact = _exact(context)
    if exact is None:
        return None
    partial = context.rng.choice(_partial(exact))
    attribute = _first_false(context, _changed(exact, context.kinds))
    thing = _first_false(context, _changed(exact, {"shape": context.spec.shapes}))
    unrelated = _unrelated(context, images)
    if attribute is None or thing is None or unrelated is None:
        return None
    return exact, partial, attribute, thing, unrelated


def _exact(context: SceneContext) -> Statement | None:
    """Two objects with a colour or with all their attributes, half of them in a relation."""
    objects = context.scene.objects
    if len(objects) < 2:
        return None
    i, j = context.rng.sample(range(len(objects)), 2)
    relation = None
    edges = clear_relations(context.scene)
    if edges and context.rng.random() < 0.5:
        i, relation, j = context.rng.choice(edges)
    kinds = context.rng.choice((["color"], list(context.kinds)))
    nouns = []
    for obj in (objects[i], objects[j]):
        nouns.append(Noun.of(obj, stated_kinds(obj, kinds)))
    return Statement(tuple(nouns), relation)


def _partial(exact: Statement) -> list[Statement]:
    """What states less and follows: one object alone, no relation, or an object without colour."""
    weaker = [Statement((noun,)) for noun in exact.nouns]
    if exact.relation is not None:
        weaker.append(Statement(exact.nouns))
    for position, noun in enumerate(exact.nouns):
        weaker.append(exact.with_noun(position, Noun(noun.shape)))
    return weaker


def _changed(exact: Statement, values_of: Mapping[str, Sequence[str]]) -> Iterator[Statement]:
    """The statement with another value of one of these kinds, which it states."""
    for position, noun in enumerate(exact.nouns):
        for kind, values in values_of.items():
            for value in values:
                if noun.get(kind) not in (None, value):
                    yield exact.with_noun(position, noun.replaced(kind, value))


def _first_false(context: SceneContext, statements: Iterator[Statement]) -> Statement | None:
    """One of the statements at random that is false and states no forbidden composition."""
    for statement in context.shuffled(list(statements)):
        if context.allows(*statement.nouns) and statement.holds(context.scene) is False:
            return statement
    return None


def _unrelated(context: SceneContext, images: Scenes) -> Statement | None:
    """The exact statement of another scene, whose objects are all absent here."""
    for _ in range(_ATTEMPTS):
        other = replace(context, scene=context.rng.choice(images).scene)
        statement = _exact(other)
        if statement is None:
            continue
        if all(noun.absent_from(context.scene) for noun in statement.nouns):
            return statement
    return None
