"""Captions of PUG:AR4T's scenes.

In: a scene and what is stated of it. Out: its captions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from data_builders.phrases import INVERSE, PHRASES
from data_builders.worlds.scenes.captions import FLOOR_PHRASES, clear_relation
from data_builders.worlds.scenes.scene import Scene
from data_builders.worlds.scenes.statements import Noun


@dataclass(frozen=True)
class SceneCaptions:
    """What the csv states of a scene.

    `alternative` names the objects in reverse order; it is "" of one object. `kinds` holds the kind
    of attribute that the captions state of each object, if they do.
    """

    relation: str
    caption: str
    alternative: str = ""
    kinds: tuple[str, ...] = ()


def attributed(scene: Scene, kinds: Sequence[str], tail: str) -> SceneCaptions:
    """Returns captions that state an attribute of each of two objects."""
    nouns = [f"{getattr(o, k)} {o.shape}" for o, k in zip(scene.objects, kinds, strict=True)]
    first, second = nouns
    caption, alternative = f"{first} and {second} {tail}", f"{second} and {first} {tail}"
    return SceneCaptions("and", caption, alternative, tuple(kinds))


def related(scene: Scene, word: str, inverse: str, tail: str) -> SceneCaptions:
    """Returns captions that state a relation of two objects, and the inverse of it."""
    first, second = (obj.shape for obj in scene.objects)
    caption = f"{first} {word} {second} {tail}"
    return SceneCaptions(word, caption, f"{second} {inverse} {first} {tail}")


def alone(scene: Scene, kind: str | None, relation: str, tail: str) -> SceneCaptions:
    """Returns the caption of a scene of one object; `relation` is that to the floor."""
    kinds = (kind,) if kind else ()
    return SceneCaptions(relation, f"{Noun.of(scene.objects[0], kinds)} {tail}", kinds=kinds)


def on_its_floor(scene: Scene, kind: str | None) -> SceneCaptions:
    """Returns captions with one word for a relation and one phrase for a floor.

    They state the relation of two objects or, where `kind` is given, that kind of attribute.
    """
    tail = FLOOR_PHRASES[scene.floor]
    if len(scene.objects) == 1:
        return alone(scene, kind, tail.split()[0], tail)
    if kind is not None:
        return attributed(scene, (kind, kind), tail)
    relation = clear_relation(scene, 0, 1) or ""
    return related(scene, PHRASES[relation], PHRASES[INVERSE[relation]], tail)
