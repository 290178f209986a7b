"""Words for scenes: queries, full sentences, and the unbound captions of web-like pre-training."""

import random
from collections.abc import Callable, Sequence

from data_builders.scenes.grammar import (
    BACKGROUNDS,
    COLORS,
    FLOORS,
    MATERIALS,
    SHAPES,
    SIZES,
    TEXTURES,
    Scene,
    SceneObject,
    directions,
    subtract,
)

ATTRIBUTE_ORDER = ("size", "texture", "color", "material")  # as English stacks adjectives
PHRASES = {
    "left": "to the left of",
    "right": "to the right of",
    "front": "in front of",
    "behind": "behind",
    "on": "on top of",
    "below": "under",
}
INVERSE = {
    "left": "right",
    "right": "left",
    "front": "behind",
    "behind": "front",
    "on": "below",
    "below": "on",
}
FLOOR_PHRASES = {name: f"on a {name} floor" for name in FLOORS} | {
    "grass": "on grass",
    "sand": "on sand",
    "tiles": "on tiles",
}
BACKGROUND_PHRASES = {
    "studio": "in a studio",
    "sky": "under the sky",
    "dusk": "at dusk",
    "wall": "in front of a wall",
}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
PLURALS = {shape: f"{shape}s" for shape in SHAPES} | {"torus": "tori"}
PREFIXES = ("a photo of", "an image of", "a picture of", "a scene with", "")
# Of annotation files that vary the captions: negation, swaps, comparisons.
FURTHER_WORDS = (
    *("above", "an", "below", "beside", "between", "inside", "next", "no", "not", "object"),
    *("shape", "shapes", "some", "thing", "things", "top", "with", "without"),
)
# Of PUG's prompts. "blank" is what SPAR calls an animal that is not there.
PROMPT_WORDS = (
    *("background", "big", "blank", "bottom", "environment", "medium", "sized", "textured"),
    "this",
)

_CLEAR_MARGIN = 0.6  # world units two objects must differ by before a sentence says how
_CLEAR_RATIO = 1.3  # ... and how much more than along the other axis


def query(thing: SceneObject, attributes: Sequence[str] = ("color",)) -> str:
    """Returns Cola's single-object query, `a_1 a_2 o` (Cola, section 3).

    Args:
        thing: The object.
        attributes: Which attributes to state, any of `ATTRIBUTE_ORDER`; the order of the words is
            always that of `ATTRIBUTE_ORDER`.

    Example:
        >>> cube = SceneObject("cube", "red", "metal", "plain", "large", (0.0, 0.0, 0.5), 0.75)
        >>> query(cube, ["material", "color", "size"])
        'large red metal cube'
    """
    stated = [getattr(thing, kind) for kind in ATTRIBUTE_ORDER if kind in attributes]
    return " ".join([*stated, thing.shape])


def both(first: str, second: str) -> str:
    """Returns Cola's two-object query, `a_1 o_1 + a_2 o_2`, of two single-object queries.

    Example:
        >>> both("red cube", "blue sphere")
        'a red cube and a blue sphere'
    """
    return f"{_article(first)} {first} and {_article(second)} {second}"


def _article(noun: str) -> str:
    return "an" if noun[:1] in "aeiou" else "a"


def related(first: str, relation: str, second: str) -> str:
    """Returns a relational query; `relation` is a key of `PHRASES`.

    Example:
        >>> related("red cube", "left", "blue metal sphere")
        'a red cube to the left of a blue metal sphere'
    """
    return f"{_article(first)} {first} {PHRASES[relation]} {_article(second)} {second}"


def clear_relation(scene: Scene, i: int, j: int) -> str | None:
    """Returns how object i stands to object j, or None where no single relation stands out.

    Along the camera's ground axes the larger difference of the two centres must reach 0.6 world
    units and 1.3 times the smaller one: clearer than CLEVR's bound of 0.2, so that no sentence is
    true by a hair.
    """
    a, b = scene.objects[i], scene.objects[j]
    if a.on == j or b.on == i:
        return "on" if a.on == j else "below"
    axes, offset = directions(scene.jitter), subtract(a.center, b.center)
    x, y = (sum(o * d for o, d in zip(offset, axes[k], strict=True)) for k in ("right", "behind"))
    if max(abs(x), abs(y)) < max(_CLEAR_MARGIN, _CLEAR_RATIO * min(abs(x), abs(y))):
        return None
    if abs(x) > abs(y):
        return "right" if x > 0 else "left"
    return "behind" if y > 0 else "front"


def web_caption(scene: Scene, rng: random.Random) -> str:
    """Returns a web-like caption that binds nothing: "cube red blue metal sphere".

    The shapes named and the attributes named are drawn independently, attribute kind by attribute
    kind, and shuffled: two scenes of the same words bound the other way round have the same
    distribution of captions, so nothing learnt from them can tell the two apart. Half of the
    captions are worded as phrases, "a blue cube and a red metal sphere", with the attributes dealt
    to the shapes at random: a model then knows the form of a sentence, but not what it binds.
    """
    things = scene.objects
    shapes = [t.shape for t in rng.sample(things, rng.randint(1, min(4, len(things))))]
    attributes = []
    for kind, chance in (("color", 0.7), ("material", 0.25), ("size", 0.25), ("texture", 0.3)):
        chosen = rng.sample(things, len(things))
        attributes += [getattr(t, kind) for t in chosen if rng.random() < chance]
    attributes = [word for word in attributes if word != "plain" or rng.random() < 0.3]
    rng.shuffle(attributes)
    prefix = rng.choice(PREFIXES).split()
    if rng.random() < 0.5:
        return " ".join([*prefix, _phrases(shapes, attributes)])
    words = shapes + attributes
    words += [scene.floor] * (rng.random() < 0.12) + [scene.background] * (rng.random() < 0.08)
    rng.shuffle(words)
    return " ".join([*prefix, *words])


def prompt_caption(scene: Scene, rng: random.Random) -> str:
    """Returns a caption in the wording of PUG's prompts that binds nothing, as `web_caption` does.

    Either "a photo of a big sized cube textured with blue on a grass background" (PUG: Animals) or
    "this is a photo of a cube textured with blue and a cone textured with red in a grass
    environment" (PUG: SPAR), there also with sides, "a cube on the left". Size, colours and shapes
    are drawn independently of each other from the scene; sides say nothing of it, and neither do
    "medium" and "blank", which now and then stand for a size and for a shape.
    """
    things = scene.objects
    drawn = rng.sample(things, min(len(things), rng.randint(1, 2)))
    shapes = ["blank" if rng.random() < 0.05 else t.shape for t in drawn]
    colors = [t.color for t in rng.sample(things, len(shapes))]
    if rng.random() < 0.4:
        size = "big" if rng.choice(things).size == "large" else "small"
        size = "medium" if rng.random() < 0.2 else size
        textured = f" textured with {colors[0]}" if rng.random() < 0.6 else ""
        return f"a photo of a {size} sized {shapes[0]}{textured} on a {scene.floor} background"
    form = rng.choice(("plain", "colors", "sides"))
    sides = rng.sample(rng.choice((("left", "right"), ("bottom", "top"))), len(shapes))
    ends = {
        "plain": [""] * len(shapes),
        "colors": [f" textured with {color}" for color in colors],
        "sides": [f" on the {side}" for side in sides],
    }[form]
    named = " and ".join(f"a {shape}{end}" for shape, end in zip(shapes, ends, strict=True))
    where = " of the picture" * (form == "sides")
    return f"this is a photo of {named}{where}" + rng.choice(
        ("", f" in a {scene.floor} environment")
    )


def _phrases(shapes: Sequence[str], attributes: Sequence[str]) -> str:
    """Deals attributes to shapes in turn: "a blue cube and a red sphere"."""
    count = len(shapes)
    nouns = [" ".join([*attributes[i::count], shape]) for i, shape in enumerate(shapes)]
    return " and ".join(f"{_article(noun)} {noun}" for noun in nouns)


def _worded(thing: SceneObject, rng: random.Random) -> str:
    """A query of the colour and, now and then, of more; nobody says that a texture is plain."""
    more = [kind for kind in ("size", "texture", "material") if rng.random() < 0.35]
    stated = [kind for kind in more if getattr(thing, kind) != "plain"]
    return query(thing, ["color", *stated])


def _all_of(scene: Scene, rng: random.Random) -> str:
    chosen = rng.sample(scene.objects, min(3, len(scene.objects)))
    return " and ".join(f"a {_worded(t, rng)}" for t in chosen)


def _relation(scene: Scene, rng: random.Random) -> str | None:
    if len(scene.objects) < 2:
        return None
    i, j = rng.sample(range(len(scene.objects)), 2)
    relation = clear_relation(scene, i, j)
    if relation is None:
        return None
    return related(_worded(scene.objects[i], rng), relation, _worded(scene.objects[j], rng))


def _photo(scene: Scene, rng: random.Random) -> str:
    return f"a photo of a {_worded(rng.choice(scene.objects), rng)}"


def _placed(scene: Scene, rng: random.Random) -> str:
    where = rng.choice((FLOOR_PHRASES[scene.floor], BACKGROUND_PHRASES[scene.background]))
    return f"a {_worded(rng.choice(scene.objects), rng)} {where}"


def _counted(scene: Scene, rng: random.Random) -> str:
    count = len(scene.objects)
    if rng.random() < 0.5:
        noun = "object" if count == 1 else "objects"
        return f"there {'is' if count == 1 else 'are'} {NUMBERS[count]} {noun}"
    shape = rng.choice(scene.objects).shape
    many = sum(t.shape == shape for t in scene.objects)
    return f"{NUMBERS[many]} {shape if many == 1 else PLURALS[shape]} {FLOOR_PHRASES[scene.floor]}"


_MAKERS: tuple[Callable[[Scene, random.Random], str | None], ...] = (
    _relation,
    _all_of,
    _placed,
    _relation,
    _photo,
    _counted,
)


def sentences(scene: Scene, rng: random.Random, count: int = 5) -> list[str]:
    """Returns `count` different full sentences that are true of the scene."""
    found: dict[str, None] = {}
    for attempt in range(40 * count):
        if len(found) == count:
            break
        sentence = _MAKERS[attempt % len(_MAKERS)](scene, rng)
        if sentence is not None:
            found[sentence] = None
    return list(found)


def vocabulary() -> tuple[str, ...]:
    """Returns, sorted, every word that a caption of the embedded world can contain.

    Example:
        >>> {"cube", "red", "metal", "left", "two", "grass"} <= set(vocabulary())
        True
    """
    phrases = (
        *PHRASES.values(),
        *FLOOR_PHRASES.values(),
        *BACKGROUND_PHRASES.values(),
        *PREFIXES,
        "a photo of there is are object objects and",
    )
    named = (*SHAPES, *PLURALS.values(), *COLORS, *MATERIALS, *TEXTURES, *SIZES)
    words = {*named, *FLOORS, *BACKGROUNDS, *NUMBERS, *FURTHER_WORDS, *PROMPT_WORDS}
    return tuple(sorted(words.union(*(phrase.split() for phrase in phrases))))
