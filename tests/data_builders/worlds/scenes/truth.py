"""Reads a sentence of the embedded world and says whether it is true, from CLEVR's scenes JSON.

Written from the words alone, so that it shares nothing with what wrote the sentences.
"""

import itertools
import re
from collections.abc import Callable
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
NOUN = rf"(?:(?:a|an|the|this) )?((?:(?:{WORDS}) )*(?:{'|'.join(SHAPES)}))"
PHRASE = f"({'|'.join(RELATIONS)})"
NOT = "(not )?"
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


def whole(side: str) -> str:
    """The relation that "to the left" and the like are the beginning of."""
    return side if side == "behind" else f"{side} of"


def _thing(scene: Scene, phrase: str, reference: str, color: str) -> bool:
    colored = {k for k, obj in enumerate(scene["objects"]) if obj["color"] == color}
    pairs = itertools.product(colored, means(scene, reference))
    return any(stands(scene, k, RELATIONS[phrase], j) for k, j in pairs if k != j)


def _coloured_things(scene: Scene, first: str, phrase: str, second: str) -> bool:
    colors = [obj["color"] for obj in scene["objects"]]
    return stands(scene, colors.index(first), RELATIONS[phrase], colors.index(second))


SIDES = tuple(RELATIONS)[:4]
OPPOSITES = (SIDES[:2], SIDES[1::-1], SIDES[2:], SIDES[:1:-1])


def _between(scene: Scene, middle: str, first: str, second: str) -> bool:
    return any(
        some(scene, middle, phrase, first) and some(scene, middle, opposite, second)
        for phrase, opposite in OPPOSITES
    )


COUNTED = "|".join((*NUMBERS, "some", "no"))
SIDE = "(to the left|to the right|in front|behind)"
# Forms of sentences that no training text has, by the name that the tables of the tests give them.
UNTAUGHT: dict[str, tuple[str, Callable[..., bool]]] = {
    "inverted": (f"{PHRASE} {NOUN} is {NOUN}", lambda s, p, b, a: some(s, a, p, b)),
    "the thing": (f"the thing {PHRASE} {NOUN} is {NOUN}", lambda s, p, b, a: some(s, a, p, b)),
    "reference first": (f"{NOUN} with {NOUN} {SIDE}",
                        lambda s, b, a, side: some(s, a, whole(side), b)),
    "not related": (f"{NOUN} is not {PHRASE} {NOUN}", lambda s, a, p, b: not some(s, a, p, b)),
    "first of two relations": (f"{NOUN} {PHRASE} {NOUN} and {PHRASE} {NOUN}",
                               lambda s, a, p, b, q, c: some(s, a, p, b) and some(s, a, q, c)),
    "predicate": (r"the (\w+) is (\w+) and the (\w+) is (\w+)",
                  lambda s, a, x, b, y: bool(means(s, f"{x} {a}") and means(s, f"{y} {b}"))),
    "not coloured": (r"the (\w+) is not (\w+)", lambda s, a, x: not means(s, f"{x} {a}")),
    "between": (f"{NOUN} between {NOUN} and {NOUN}", _between),
    "colour first": (r"(\w+) is the (\w+) and (\w+) is the (\w+)",
                     lambda s, x, a, y, b: bool(means(s, f"{x} {a}") and means(s, f"{y} {b}"))),
    "in a colour": (r"a (\w+) in (\w+) and a (\w+) in (\w+)",
                    lambda s, a, x, b, y: bool(means(s, f"{x} {a}") and means(s, f"{y} {b}"))),
    "same colour": (r"the (\w+) and the (\w+) are (\w+)",
                    lambda s, a, b, x: means(s, a) | means(s, b)
                    <= means(s, f"{x} {a}") | means(s, f"{x} {b}")),
    "two related": (f"{NOUN} and {NOUN} are {PHRASE} {NOUN}",
                    lambda s, a, b, p, c: some(s, a, p, c) and some(s, b, p, c)),
    "related subject": (f"{NOUN} {PHRASE} {NOUN} is {PHRASE} {NOUN}",
                        lambda s, a, p, b, q, c: some(s, a, p, b) and some(s, a, q, c)),
    "related thing": (rf"the thing {PHRASE} {NOUN} is (\w+)", _thing),
    "this colour, not that": (
        r"the (\w+) is (\w+) and not (\w+)",
        lambda s, a, x, y: bool(means(s, f"{x} {a}")) and not means(s, f"{y} {a}")),
    "this side, not that": (
        f"{NOUN} is {PHRASE} and not {PHRASE} {NOUN}",
        lambda s, a, p, q, b: some(s, a, p, b) and not some(s, a, q, b)),
    "no object": (r"no object is a (\w+)", lambda s, a: not means(s, a)),
    "neither": (r"there is no (\w+) and no (\w+)",
                lambda s, a, b: not means(s, a) and not means(s, b)),
    # Of a table of further forms.
    "to either side": (f"{NOUN} to the (left|right) and {NOUN} to the (left|right)",
                       lambda s, a, p, b, q: p != q and some(s, a, f"to the {p} of", b)),
    "on either side": (f"on the (left|right) is {NOUN} and on the (left|right) is {NOUN}",
                       lambda s, p, a, q, b: p != q and some(s, a, f"to the {p} of", b)),
    "one thing": (f"one thing is {NOUN} and one thing is {NOUN}", distinct),
    "coloured objects": (r"the (\w+) object is a (\w+) and the (\w+) object is a (\w+)",
                         lambda s, x, a, y, b: distinct(s, f"{x} {a}", f"{y} {b}")),
    "next to": (f"{NOUN} next to {NOUN}", distinct),
    "colours in order": (r"a (\w+) and a (\w+) in (\w+) and (\w+)",
                         lambda s, a, b, x, y: distinct(s, f"{x} {a}", f"{y} {b}")),
    "there, not there": (r"there is a (\w+) and not a (\w+)",
                         lambda s, a, b: bool(means(s, a)) and not means(s, b)),
    "one is not there": (r"a (\w+) is in the picture and a (\w+) is not",
                         lambda s, a, b: bool(means(s, a)) and not means(s, b)),
    "related shape": (rf"the (\w+) {PHRASE} {NOUN} is (\w+)",
                      lambda s, a, p, b, x: some(s, f"{x} {a}", p, b)),
    "shape there": (rf"the shape {PHRASE} {NOUN} is a (\w+)", lambda s, p, b, a: some(s, a, p, b)),
    "not of a shape": (r"the (\w+) object is not a (\w+)",
                       lambda s, x, a: not means(s, f"{x} {a}")),
    "no coloured object": (r"no (\w+) object is a (\w+)",
                           lambda s, x, a: not means(s, f"{x} {a}")),
    "the other is not": (
        r"the (\w+) is (\w+) and the (\w+) is not",
        lambda s, a, x, b: bool(means(s, f"{x} {a}")) and not means(s, f"{x} {b}")),
    "related colours": (rf"the (\w+) thing is {PHRASE} the (\w+) thing", _coloured_things),
}  # fmt: skip
UNTAUGHT["second of two relations"] = UNTAUGHT["first of two relations"]
# Forms that training texts have, too.
SHARED = {
    "absent": (r"there is no (\w+)", lambda s, a: not means(s, a)),
    "three objects": (f"{NOUN} and {NOUN} and {NOUN}",
                      lambda s, a, b, c: bool(means(s, a) and means(s, b) and means(s, c))),
    "counted": (r"in the picture (?:is|are) (\w+) objects?",
                lambda s, n: len(s["objects"]) == NUMBERS.index(n)),
}  # fmt: skip


def fits(scene: Scene, sentence: str, form: str) -> bool:
    """Whether a sentence of one of these forms is true."""
    pattern, rule = (UNTAUGHT | SHARED)[form]
    found = re.fullmatch(pattern, sentence)
    assert found, sentence
    return rule(scene, *found.groups())


RULES = (
    (f"{NOUN} {PHRASE} {NOUN} and {NOUN}",
     lambda s, a, p, b, c: some(s, a, p, b) and bool(means(s, c))),
    (rf"this is {NOUN} textured with (\w+) and {NOUN} textured with (\w+)",
     lambda s, a, x, b, y: distinct(s, f"{x} {a}", f"{y} {b}")),
    (rf"{NOUN} on the (\w+) and {NOUN} on the (\w+) of the picture",
     lambda s, a, x, b, y: _lies(s, a, x) and _lies(s, b, y)),
    (rf"{NOUN} on (?:a (\w+) floor|(grass|sand|tiles))", _floor),
    (rf"the ({'|'.join(SHAPES)}) is (not )?(\w+)", _is),
    # Relations in many orders.
    (f"(?:there is )?{NOUN} (?:is )?{NOT}{PHRASE} {NOUN}",
     lambda s, a, no, p, b: some(s, a, p, b) != bool(no)),
    (f"{NOT}{PHRASE} {NOUN} there is {NOUN}", lambda s, no, p, b, a: some(s, a, p, b) != bool(no)),
    (f"{NOUN} with {NOUN} {NOT}{PHRASE} this", lambda s, b, a, no, p: some(s, a, p, b) != bool(no)),
    (f"{NOUN} and {NOT}{PHRASE} this {NOUN}", lambda s, a, no, p, b: some(s, b, p, a) != bool(no)),
    (f"there is {NOUN} and {NOT}{PHRASE} this is {NOUN}",
     lambda s, b, no, p, a: some(s, a, p, b) != bool(no)),
    (f"there is {NOUN} and {NOUN} is {NOT}{PHRASE} this",
     lambda s, b, a, no, p: some(s, a, p, b) != bool(no)),
    (f"{NOUN} and {NOUN} with {NOUN} {NOT}{PHRASE} {NOUN}",
     lambda s, a, b, c, no, p, d: (some(s, c, p, d) != bool(no)) and (a, b) == (c, d)),
    (f"with {NOUN} {NOT}{SIDE} there is {NOUN}",
     lambda s, a, no, side, b: some(s, a, whole(side), b) != bool(no)),
    (f"{NOUN} is {NOT}the object {PHRASE} {NOUN}",
     lambda s, a, no, p, b: some(s, a, p, b) != bool(no)),
    (f"{NOUN} in the picture is {NOT}{PHRASE} {NOUN}",
     lambda s, a, no, p, b: some(s, a, p, b) != bool(no)),
    (f"{NOUN} and this is not {PHRASE} {NOUN}", lambda s, a, p, b: not some(s, a, p, b)),
    (f"(?:there is )?no {NOUN} {PHRASE} {NOUN}", lambda s, a, p, b: not some(s, a, p, b)),
    (f"{PHRASE} {NOUN} there is no {NOUN}", lambda s, p, b, a: not some(s, a, p, b)),
    (f"{NOUN} with(?: no|out) {NOUN} {PHRASE} this", lambda s, b, a, p: not some(s, a, p, b)),
    # Two relations.
    (f"{NOUN} (?:is )?{PHRASE} {NOUN} and {NOUN} (?:is )?{PHRASE} {NOUN}",
     lambda s, a, p, b, c, q, d: some(s, a, p, b) and some(s, c, q, d)),
    (f"{NOUN} and {NOUN} and {NOUN} {PHRASE} {NOUN} and {PHRASE} {NOUN}",
     lambda s, b, c, a, p, d, q, e: some(s, a, p, d) and some(s, a, q, e) and (b, c) == (d, e)),
    (f"{PHRASE} {NOUN} and {PHRASE} {NOUN} there is {NOUN}",
     lambda s, p, b, q, c, a: some(s, a, p, b) and some(s, a, q, c)),
    (f"{NOUN} with {NOUN} {PHRASE} this and {NOUN} {PHRASE} this",
     lambda s, a, b, p, c, q: some(s, b, p, a) and some(s, c, q, a)),
    (f"{NOUN} and {NOUN} {PHRASE} this and {PHRASE} {NOUN}",
     lambda s, c, a, q, p, b: some(s, a, p, b) and some(s, a, q, c)),
    (f"(?:there is )?{NOUN} and this is {PHRASE} {NOUN} and {PHRASE} {NOUN}",
     lambda s, a, p, b, q, c: some(s, a, p, b) and some(s, a, q, c)),
    (f"(?:there is )?{NOUN} (?:is )?{PHRASE} {NOUN} and this is {PHRASE} {NOUN}",
     lambda s, a, p, b, q, c: some(s, a, p, b) and some(s, a, q, c)),
    (f"{PHRASE} {NOUN} there is {NOUN} and this is {PHRASE} {NOUN}",
     lambda s, p, b, a, q, c: some(s, a, p, b) and some(s, a, q, c)),
    (f"{PHRASE} {NOUN} there is {NOUN} and {PHRASE} {NOUN} there is {NOUN}",
     lambda s, p, b, a, q, c, d: some(s, a, p, b) and some(s, d, q, c)),
    # Colours of one, two and three objects.
    (f"(?:there is )?{NOUN} (?:and|with|beside) {NOUN}", distinct),
    (r"a (\w+) and this is (\w+) and a (\w+) and this is (\w+)",
     lambda s, a, x, b, y: distinct(s, f"{x} {a}", f"{y} {b}")),
    (rf"a (\w+) beside {NOUN} is (\w+)", lambda s, a, b, x: distinct(s, f"{x} {a}", b)),
    (rf"a (\w+) textured with (\w+) and {NOUN}", lambda s, a, x, b: distinct(s, f"{x} {a}", b)),
    (rf"{NOUN} and the (\w+) is (\w+)", lambda s, a, b, x: distinct(s, a, f"{x} {b}")),
    (rf"a (\w+) object and this is a (\w+) and {NOUN}",
     lambda s, x, a, b: distinct(s, f"{x} {a}", b)),
    (rf"(?:there is )?{NOUN} (?:and this is|in the picture is|textured with) {NOT}(\w+)",
     lambda s, a, no, x: bool(means(s, f"{x} {a}")) != bool(no)),
    (rf"{NOUN} is {NOT}the (\w+) object",
     lambda s, a, no, x: bool(means(s, f"{x} {a}")) != bool(no)),
    (rf"there is {NOUN} and the (\w+) is {NOT}(\w+)",
     lambda s, a, b, no, x: a == b and bool(means(s, f"{x} {a}")) != bool(no)),
    (f"(?:there is )?{NOUN} (?:and|with) {NOUN} and {NOUN}",
     lambda s, a, b, c: distinct(s, a, b) and bool(means(s, c))),
    # Presence and number.
    (f"(?:there is )?(?:no|not) {NOUN}(?: is)?(?: in the picture)?", lambda s, a: not means(s, a)),
    (f"(?:this is )?a picture without {NOUN}", lambda s, a: not means(s, a)),
    (f"(?:no object in the picture|not one of the objects) is {NOUN}",
     lambda s, a: not means(s, a)),
    (f"{NOUN} is not (?:in the picture|one of the objects)", lambda s, a: not means(s, a)),
    (f"(?:one of the objects|a object in the picture) is {NOUN}", lambda s, a: bool(means(s, a))),
    (f"{NOUN} is (?:in the picture|one of the objects)", lambda s, a: bool(means(s, a))),
    (f"(?:there is )?{NOUN} and no {NOUN}", lambda s, b, a: bool(means(s, b)) and not means(s, a)),
    (f"(?:there is |a picture with )?{NOUN}", lambda s, a: bool(means(s, a))),
    (rf"there (?:is|are) ({COUNTED}) (\w+)", lambda s, n, a: _counts(number(s, a), n)),
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
    # Words of the same meaning.
    sentence = sentence.replace("thing", "object").replace("scene", "picture")
    denied = re.sub("this is no picture of |no photo of ", "", sentence)
    if denied != sentence:
        return not _holds(scene, denied)
    for pattern, rule in RULES:
        if found := re.fullmatch(pattern, sentence):
            return rule(scene, *found.groups())
    raise NoSentenceError(sentence)
