"""How captions say attributes and relations; the corpora and the rendered world share it.

In: noun phrases, names of relations, offsets on the ground. Out: phrases, and the relation stated.
"""

from collections.abc import Mapping
from typing import Literal

from data_builders.worlds.scenes.scene import Vector, dot
from vlmtune.language.words import article

Attribute = Literal["size", "texture", "color", "material"]
# The order of English adjectives.
ATTRIBUTE_ORDER: tuple[Attribute, ...] = ("size", "texture", "color", "material")
PHRASES = {"left": "to the left of", "right": "to the right of", "front": "in front of",
           "behind": "behind", "on": "on top of", "under": "under", "above": "above",
           "below": "below"}  # fmt: skip
INVERSE = {"left": "right", "right": "left", "front": "behind", "behind": "front", "on": "under",
           "under": "on", "above": "below", "below": "above"}  # fmt: skip

CLEAR_MARGIN = 0.6  # minimum difference of two centres, in world units, to state a relation
CLEAR_RATIO = 1.3  # minimum ratio of that difference to the one along the other axis


def with_article(noun: object) -> str:
    """Returns a noun phrase, a string or a `statements.Noun`, with its article.

    Example:
        >>> with_article("torus"), with_article("orange cube"), with_article("used car")
        ('a torus', 'an orange cube', 'a used car')
    """
    words = str(noun)
    return f"{article(words)} {words}"


def plural(noun: str) -> str:
    """Returns the plural of a shape's name, or of a word for one.

    Example:
        >>> plural("torus"), plural("cube")
        ('tori', 'cubes')
    """
    return "tori" if noun == "torus" else f"{noun}s"


def both(first: object, second: object) -> str:
    """Returns Cola's two-object query, `a_1 o_1 + a_2 o_2`, of two noun phrases.

    Example:
        >>> both("red cube", "blue sphere")
        'a red cube and a blue sphere'
    """
    return f"{with_article(first)} and {with_article(second)}"


def related(first: object, relation: str, second: object) -> str:
    """Returns a relational query of two noun phrases; `relation` is a key of `PHRASES`.

    Example:
        >>> related("red cube", "left", "blue metal sphere")
        'a red cube to the left of a blue metal sphere'
    """
    return f"{with_article(first)} {PHRASES[relation]} {with_article(second)}"


def clear_direction(
    offset: Vector, axes: Mapping[str, Vector]
) -> Literal["left", "right", "front", "behind"] | None:
    """Returns the direction of an offset on the ground, or None if none stands out.

    `axes` are CLEVR's unit vectors "right" and "behind".

    Example:
        >>> axes = {"right": (1.0, 0.0, 0.0), "behind": (0.0, 1.0, 0.0)}
        >>> clear_direction((-2.0, 0.5, 0.0), axes), clear_direction((-0.5, 0.1, 0.0), axes)
        ('left', None)
    """
    x = dot(offset, axes["right"])
    y = dot(offset, axes["behind"])
    shorter, longer = sorted((abs(x), abs(y)))
    if longer < max(CLEAR_MARGIN, CLEAR_RATIO * shorter):
        return None
    if abs(x) > abs(y):
        return "right" if x > 0 else "left"
    return "behind" if y > 0 else "front"
