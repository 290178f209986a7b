"""The pieces of VALSE (Parcalabescu et al. 2022, section 3).

In: rendered scenes. Out: the contents of the files.

Action replacement changes the status of the subject, "the cube is red". Coreference has a sentence
that refers back, "there is one cube. this object is not red"; "not" stands for the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from data_builders.phrases import plural
from data_builders.worlds.scenes.captions import NUMBERS, counting
from data_builders.worlds.scenes.formats.context import (
    Foil,
    SceneContext,
    SuiteScenes,
    replaced_object,
    replaced_relation,
    swapped_objects,
)
from data_builders.worlds.scenes.image_files import SceneImage
from data_builders.worlds.scenes.scene import SceneObject
from data_builders.worlds.scenes.statements import object_count, stated_kinds

SMALL = 3  # the largest number that VALSE calls small


def pieces(scenes: SuiteScenes) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the contents of the files by piece, at most one row a scene in each."""
    files: dict[str, dict[str, dict[str, Any]]] = {}
    for piece, write in PIECES.items():
        rows = scenes.rows(f"valse {piece}", write)
        files[piece] = {
            f"scenes_test_{image.index}": _record(piece, image, row) for image, row in rows
        }
    return files


def _record(piece: str, image: SceneImage, row: Foil) -> dict[str, Any]:
    return {"dataset": "scenes", "original_split": "test", "dataset_idx": image.index,
            "linguistic_phenomena": piece, "image_file": image.name, "caption": row.caption,
            "classes": row.word, "classes_foil": row.foil_word,
            "mturk": {"foil": 0, "caption": 3, "other": 0}, "foil": row.foil}  # fmt: skip


def _any_shape(context: SceneContext) -> str:
    return context.rng.choice(context.scene.objects).shape


def _sole(context: SceneContext) -> list[tuple[SceneObject, str]]:
    """The sole objects of their shape, each with a kind to state, shuffled."""
    scene = context.scene
    objects = [o for o in scene.objects if object_count(scene, o.shape) == 1]
    return context.shuffled([(o, k) for o in objects for k in stated_kinds(o, context.kinds)])


def _existence(context: SceneContext) -> Foil | None:
    missing = context.shuffled(
        [s for s in context.spec.shapes if not object_count(context.scene, s)]
    )
    # The same two sentences either way: the words alone do not tell which one is the foil.
    if missing and context.rng.random() < 0.5:
        return Foil(f"there is no {missing[0]}", f"there is a {missing[0]}", "no", "a")
    shape = _any_shape(context)
    return Foil(f"there is a {shape}", f"there is no {shape}", "a", "no")


def _plurals(context: SceneContext) -> Foil | None:
    several = [s for s in context.spec.shapes if object_count(context.scene, s) > 1]
    shape = context.rng.choice(several) if several else _any_shape(context)
    shapes = plural(shape)
    one, some = f"there is one {shape}", f"there are some {shapes}"
    if several:
        return Foil(some, one, shapes, shape)
    return Foil(one, some, shape, shapes)


def _counting(context: SceneContext, shape: str | None, numbers: Sequence[int]) -> Foil | None:
    number = object_count(context.scene, shape)
    others = [n for n in numbers if n != number]  # zero is left to the piece about existence
    if not others:
        return None
    other = context.rng.choice(others)
    texts = counting(number, shape), counting(other, shape)
    return Foil(*texts, NUMBERS[number], NUMBERS[other])


def _counting_small(context: SceneContext) -> Foil | None:
    shape = _any_shape(context)
    small = object_count(context.scene, shape) <= SMALL
    return _counting(context, shape, range(1, SMALL + 1)) if small else None


def _counting_adversarial(context: SceneContext) -> Foil | None:
    # The foil is a smaller number, which models are known to prefer.
    return _counting(context, None, range(1, object_count(context.scene, None)))


def _action_replacement(context: SceneContext) -> Foil | None:
    for obj, kind in _sole(context):
        value = getattr(obj, kind)
        if others := [other for other in context.kinds[kind] if other != value]:
            other = context.rng.choice(others)
            subject = f"the {obj.shape} is"
            return Foil(f"{subject} {value}", f"{subject} {other}", value, other)
    return None


def _coreference(context: SceneContext, hard: bool) -> Foil | None:
    """In hard rows another object of the scene has the opposite answer."""
    negated = context.rng.random() < 0.5
    for obj, kind in _sole(context):
        value = getattr(obj, kind)
        others = {getattr(other, kind) for other in context.scene.objects} - {value}
        if hard and not others:
            continue
        false = [v for v in context.kinds[kind] if v != value and (v in others) == hard]
        if values := false if negated else [value]:
            start, chosen = f"there is one {obj.shape}. this object is", context.rng.choice(values)
            positive, negative = f"{start} {chosen}", f"{start} not {chosen}"
            if negated:
                return Foil(negative, positive, "no", "yes")
            return Foil(positive, negative, "yes", "no")
    return None


PIECES: Mapping[str, Callable[[SceneContext], Foil | None]] = {
    "existence": _existence, "plurals": _plurals,
    "counting-hard": lambda context: _counting(context, None, range(1, len(NUMBERS))),
    "counting-small-quant": _counting_small, "counting-adversarial": _counting_adversarial,
    "relations": replaced_relation, "action-replacement": _action_replacement,
    "actant-swap": swapped_objects, "coreference-standard": partial(_coreference, hard=False),
    "coreference-hard": partial(_coreference, hard=True), "foil-it": replaced_object,
}  # fmt: skip
