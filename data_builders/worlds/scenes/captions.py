"""Sentences about a scene.

In: a scene. Out: queries and true sentences.
"""

import random
from collections.abc import Callable, Sequence

from data_builders.phrases import (
    ATTRIBUTE_ORDER,
    PHRASES,
    clear_direction,
    plural,
    related,
    with_article,
)
from data_builders.worlds.scenes.scene import (
    BACKGROUNDS,
    COLORS,
    FLOORS,
    MATERIALS,
    SHAPES,
    SIZES,
    TEXTURES,
    Scene,
    SceneObject,
    subtract,
)

FLOOR_PHRASES = {name: f"on a {name} floor" for name in FLOORS}
FLOOR_PHRASES |= {name: f"on {name}" for name in ("grass", "sand", "tiles")}
BACKGROUND_PHRASES = {"studio": "in a studio", "sky": "under the sky", "dusk": "at dusk",
                      "wall": "in front of a wall"}  # fmt: skip
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
PREFIXES = ("a photo of", "an image of", "a picture of", "a scene with", "")
# Words of annotation files that vary the captions (negation, swaps, comparisons), and of PUG's
# prompts. SPAR calls an absent animal "blank".
_EXTRA_WORDS = """
above an below beside between inside next no not object shape shapes some thing things top with
without background big blank bottom environment medium sized textured this
"""

_CLEAR_OFFSET = 0.1  # minimum distance from the middle, in picture widths, to state a side
SIDES = (("left", "right"), ("bottom", "top"))  # across the picture, and up
PHOTO_PREFIXES = ("", "a photo of ", "this is a photo of ")


def query(obj: SceneObject, attributes: Sequence[str] = ("color",)) -> str:
    """Returns Cola's single-object query, `a_1 a_2 o` (Cola, section 3).

    Example:
        >>> cube = SceneObject("cube", "red", "metal", "plain", "large", (0.0, 0.0, 0.5), 0.75)
        >>> query(cube, ["material", "color", "size"])
        'large red metal cube'
    """
    words = [getattr(obj, kind) for kind in ATTRIBUTE_ORDER if kind in attributes]
    return " ".join([*words, obj.shape])


def clear_relation(scene: Scene, i: int, j: int) -> str | None:
    """Returns the relation of object i to object j, or None if none stands out.

    Along the camera's ground axes the larger difference of the centres must reach 0.6 world units
    and 1.3 times the smaller one; CLEVR's bound is 0.2. An object on another one stands on it; one
    above floats over it.
    """
    a, b = scene.objects[i], scene.objects[j]
    if a.on == j or b.on == i:
        return "on" if a.on == j else "under"
    if a.floats_over(b) or b.floats_over(a):
        return "above" if a.floats_over(b) else "below"
    return clear_direction(subtract(a.center, b.center), scene.view.axes)


def _random_query(obj: SceneObject, rng: random.Random) -> str:
    kinds = [kind for kind in ("size", "texture", "material") if rng.random() < 0.35]
    return query(obj, ["color", *(kind for kind in kinds if getattr(obj, kind) != "plain")])


def _conjunction(scene: Scene, rng: random.Random) -> str:
    sampled = rng.sample(scene.objects, min(3, len(scene.objects)))
    return " and ".join(f"a {_random_query(o, rng)}" for o in sampled)


def _relation(scene: Scene, rng: random.Random) -> str | None:
    if len(scene.objects) < 2:
        return None
    i, j = rng.sample(range(len(scene.objects)), 2)
    relation = clear_relation(scene, i, j)
    if relation is None:
        return None
    first, second = (_random_query(scene.objects[k], rng) for k in (i, j))
    return related(first, relation, second)


def clear_side(scene: Scene, obj: SceneObject, sides: tuple[str, str]) -> str | None:
    """Returns on which of two opposite sides of the picture an object is; None near the middle."""
    offset = scene.view.project(obj.center)[SIDES.index(sides)]
    if abs(offset) < _CLEAR_OFFSET:
        return None
    low, high = sides
    return low if offset < 0 else high


def placement(scene: Scene, rng: random.Random) -> str | None:
    """Returns a sentence that states the side of the picture of one or two objects.

    "a red cube on the left of the picture", "this is a photo of a red cube on the left and a torus
    on the right of the picture in a grass environment" (the wording of PUG: SPAR's prompts). The
    centres of the objects are at least a tenth of the picture's width from its middle. None if no
    sampled object is.
    """
    sampled = rng.sample(scene.objects, min(2, len(scene.objects)))
    sides = rng.choice(SIDES)
    stated = []
    for obj in sampled:
        side = clear_side(scene, obj, sides)
        if side is not None:
            words = obj.shape if rng.random() < 0.5 else _random_query(obj, rng)
            stated.append((words, side))
    if not stated:
        return None
    texts = [f"{with_article(words)} on the {side}" for words, side in stated]
    if len(stated) == 2 and stated[0][1] == stated[1][1]:
        texts = texts[:1]
    prefix = rng.choice(PHOTO_PREFIXES)
    where = rng.choice(("", f" in a {scene.floor} environment"))
    return f"{prefix}{' and '.join(texts)} of the picture{where}"


def _photo(scene: Scene, rng: random.Random) -> str:
    return f"a photo of a {_random_query(rng.choice(scene.objects), rng)}"


def _location(scene: Scene, rng: random.Random) -> str:
    where = rng.choice((FLOOR_PHRASES[scene.floor], BACKGROUND_PHRASES[scene.background]))
    return f"a {_random_query(rng.choice(scene.objects), rng)} {where}"


def _count(scene: Scene, rng: random.Random) -> str | None:
    if len(scene.objects) >= len(NUMBERS):
        return None  # no word for their number
    if rng.random() < 0.5:
        return counting(len(scene.objects), None)
    shape = rng.choice(scene.objects).shape
    count = sum(o.shape == shape for o in scene.objects)
    return f"{_number_of(count, shape)} {FLOOR_PHRASES[scene.floor]}"


def _number_of(number: int, shape: str | None) -> str:
    noun = shape or "object"
    return f"{NUMBERS[number]} {noun if number == 1 else plural(noun)}"


def counting(number: int, shape: str | None) -> str:
    """Returns the sentence that states how many objects of a shape, or in all, there are.

    Example:
        >>> counting(1, "cube"), counting(0, "torus"), counting(3, None)
        ('there is one cube', 'there are zero tori', 'there are three objects')
    """
    return f"there {'is' if number == 1 else 'are'} {_number_of(number, shape)}"


_WRITERS: tuple[Callable[[Scene, random.Random], str | None], ...] = (
    _relation, _conjunction, _location, _relation, _photo, _count,
)  # fmt: skip


def sentences(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """Returns `count` different full sentences that are true of the scene."""
    texts: dict[str, None] = {}
    for attempt in range(40 * count):
        if len(texts) == count:
            break
        sentence = _WRITERS[attempt % len(_WRITERS)](scene, rng)
        if sentence is not None:
            texts[sentence] = None
    return list(texts)


def vocabulary() -> tuple[str, ...]:
    """Returns, sorted, every word that a caption of the embedded world can contain."""
    phrases = (*PHRASES.values(), *FLOOR_PHRASES.values(), *BACKGROUND_PHRASES.values(), *PREFIXES,
               "a photo of there is are object objects and")  # fmt: skip
    names = (*SHAPES, *map(plural, SHAPES), *COLORS, *MATERIALS, *TEXTURES, *SIZES)
    words = {*names, *FLOORS, *BACKGROUNDS, *NUMBERS, *_EXTRA_WORDS.split()}
    return tuple(sorted(words.union(*(phrase.split() for phrase in phrases))))
