"""Reads a sentence of the embedded world and says whether it is true, from CLEVR's scenes JSON.

Written from the words alone, so that it shares nothing with what wrote the sentences.
"""

import re
from typing import Any

SHAPES = ("cube", "sphere", "cylinder", "cone", "torus")
PLURALS = {"cubes": "cube", "spheres": "sphere", "cylinders": "cylinder", "cones": "cone",
           "tori": "torus"}  # fmt: skip
KINDS = {
    "color": ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"),
    "material": ("rubber", "metal"),
    "size": ("small", "large"),
    "texture": ("plain", "striped", "checkered"),
}
KIND = {word: kind for kind, words in KINDS.items() for word in words}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
RELATIONS = {
    "to the left of": "left",
    "to the right of": "right",
    "in front of": "front",
    "behind": "behind",
    "on top of": "on",
    "under": "below",
}
WORDS = "|".join((*KIND, "not"))
NOUN = rf"(?:(?:a|an|the) )?((?:(?:{WORDS}) )*(?:{'|'.join(SHAPES)}))"
PHRASE = f"({'|'.join(RELATIONS)})"
Scene = dict[str, Any]


class NoSentenceError(ValueError):
    """The words are no sentence of the world."""


def means(scene: Scene, noun: str) -> set[int]:
    """The objects that a noun may mean."""
    *adjectives, shape = noun.split()
    found = {k for k, o in enumerate(scene["objects"]) if o["shape"] == shape}
    negative = False
    for word in adjectives:
        if word == "not":
            negative = True
            continue
        own = {k for k, o in enumerate(scene["objects"]) if o[KIND[word]] == word}
        found = found - own if negative else found & own
        negative = False
    return found


def stands(scene: Scene, i: int, relation: str, j: int) -> bool:
    """Whether object i stands so to object j, by CLEVR's bound."""
    on = [o["on"] for o in scene["objects"]]
    if relation in ("on", "below"):
        return on[i] == j if relation == "on" else on[j] == i
    return i in scene["relationships"][relation][j]


def some(scene: Scene, first: str, phrase: str, second: str) -> bool:
    return any(
        stands(scene, i, RELATIONS[phrase], j)
        for i in means(scene, first)
        for j in means(scene, second)
        if i != j
    )


def number(scene: Scene, noun: str) -> int:
    if noun in ("object", "objects"):
        return len(scene["objects"])
    return len(means(scene, PLURALS.get(noun, noun)))


def distinct(scene: Scene, *nouns: str) -> bool:
    """Whether each noun has an object of its own."""
    if not nouns:
        return True
    first, *rest = (means(scene, noun) for noun in nouns)
    if not rest:
        return bool(first)
    assert len(rest) == 1, "two nouns at most"
    return any(i != j for i in first for j in rest[0])


def _lies(scene: Scene, noun: str, side: str) -> bool:
    """Whether an object of the noun lies in that half of the picture."""
    axis = 0 if side in ("left", "right") else 1
    middle = scene["image_size"][axis] / 2
    places = [scene["objects"][k]["pixel_coords"][axis] for k in means(scene, noun)]
    if side in ("left", "top"):
        return any(place < middle for place in places)
    return any(place > middle for place in places)


def _floor(scene: Scene, noun: str, named: str | None, bare: str | None) -> bool:
    return bool(means(scene, noun)) and scene["floor"] == (named or bare)


def _is(scene: Scene, shape: str, negation: str | None, word: str) -> bool:
    """Of "the cube", so there must be one only."""
    (k,) = means(scene, shape)
    return (scene["objects"][k][KIND[word]] == word) != bool(negation)


COUNTED = "|".join((*NUMBERS, "some", "no"))
RULES = (
    (f"{NOUN} (?:is )?{PHRASE} {NOUN}", some),
    (f"{NOUN} {PHRASE} {NOUN} and {NOUN}",
     lambda s, a, p, b, c: some(s, a, p, b) and bool(means(s, c))),
    (f"{NOUN} not {PHRASE} {NOUN}", lambda s, a, p, b: not some(s, a, p, b)),
    (f"there is no {NOUN} {PHRASE} {NOUN}", lambda s, a, p, b: not some(s, a, p, b)),
    (f"there is no {NOUN}", lambda s, a: not means(s, a)),
    (f"there is {NOUN}", lambda s, a: bool(means(s, a))),
    (f"{NOUN} and {NOUN}", distinct),
    (f"{NOUN} and {NOUN} and {NOUN}",
     lambda s, a, b, c: distinct(s, a, b) and bool(means(s, c))),
    (rf"this is {NOUN} textured with (\w+) and {NOUN} textured with (\w+)",
     lambda s, a, x, b, y: distinct(s, f"{x} {a}", f"{y} {b}")),
    (rf"{NOUN} on the (\w+) and {NOUN} on the (\w+) of the picture",
     lambda s, a, x, b, y: _lies(s, a, x) and _lies(s, b, y)),
    (NOUN, lambda s, a: bool(means(s, a))),
    (rf"there (?:is|are) ({COUNTED}) (\w+)", lambda s, n, a: _counts(number(s, a), n)),
    (rf"{NOUN} on (?:a (\w+) floor|(grass|sand|tiles))", _floor),
    (rf"the ({'|'.join(SHAPES)}) is (not )?(\w+)", _is),
)  # fmt: skip


def _counts(count: int, word: str) -> bool:
    if word in ("some", "no"):
        return count > 1 if word == "some" else count == 0
    return count == NUMBERS.index(word)


def holds(scene: Scene, text: str) -> bool:
    """Whether every sentence is true.

    Raises:
        NoSentenceError: One of them is none.
    """
    # What "this object" refers to was named right before.
    text = re.sub(r"(there is one (\w+)\. )this object", r"\1the \2", text.lower())
    return all([_holds(scene, sentence) for sentence in text.rstrip(".").split(". ")])


def _holds(scene: Scene, sentence: str) -> bool:
    sentence = re.sub(
        "(this is )?a photo of (?=.* of the picture)|a photo of ", "", sentence, count=1
    )
    for pattern, rule in RULES:
        if found := re.fullmatch(pattern, sentence):
            return rule(scene, *found.groups())
    raise NoSentenceError(sentence)
