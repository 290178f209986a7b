"""Words for descriptions, relations and answers, with synonyms.

In: values of parameters and a random generator. Out: words for the fields of templates. Never: a
change of what the values mean.
"""

import random
from collections.abc import Mapping, Sequence

from data_builders.programs.scene_graph import ATTRIBUTES

Description = tuple[tuple[str, str], ...]  # (attribute, value), in the order of `ATTRIBUTES`

SYNONYMS = {
    "thing": ("thing", "object"),
    "cube": ("cube", "block"),
    "sphere": ("sphere", "ball"),
    "torus": ("torus", "ring"),
    "large": ("large", "big"),
    "small": ("small", "tiny"),
    "metal": ("metal", "metallic", "shiny"),
    "rubber": ("rubber", "matte"),
    "left": ("left of", "to the left of", "on the left side of"),
    "right": ("right of", "to the right of", "on the right side of"),
    "front": ("in front of",),
    "behind": ("behind",),
}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PLURALS = {"torus": "tori"}


def fields(
    descriptions: Mapping[str, Description],
    relations: Mapping[str, str],
    rng: random.Random,
    synonyms: bool = True,
) -> dict[str, str]:
    """Returns the words for the fields of a template.

    Args:
        descriptions: What each object or set is described by, by parameter.
        relations: The relations, by parameter.
        rng: Chooses among synonyms.
        synonyms: Whether to use any but the first word.

    Example:
        >>> words = fields({"A": (("size", "small"), ("color", "red"))}, {"r": "left"},
        ...                random.Random(0), synonyms=False)
        >>> words["As"], words["aA"], words["r"]
        ('small red things', 'a small red thing', 'left of')
    """

    def chosen(word: str) -> str:
        known = SYNONYMS.get(word, (word,))
        return rng.choice(known) if synonyms else known[0]

    out = {name: chosen(relation) for name, relation in relations.items()}
    for name, description in {**descriptions, "T": ()}.items():
        stated = dict(description)
        adjectives = [chosen(stated[kind]) for kind in ATTRIBUTES[:-1] if kind in stated]
        noun = chosen(stated.get("shape", "thing"))
        out[name] = " ".join([*adjectives, noun])
        # "A" has the plural "As", "A2" has "As2".
        letter, mark = name[0], name[1:]
        out[f"{letter}s{mark}"] = " ".join([*adjectives, plural(noun)])
        out[f"a{name}"] = with_article(out[name])
    return out


def plural(noun: str) -> str:
    """The plural of a noun.

    Example:
        >>> plural("torus"), plural("cube")
        ('tori', 'cubes')
    """
    return _PLURALS.get(noun, f"{noun}s")


def with_article(words: str) -> str:
    """The words after "a" or "an".

    Example:
        >>> with_article("object"), with_article("big object")
        ('an object', 'a big object')
    """
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def number_word(number: int) -> str:
    """The number in words up to ten.

    Example:
        >>> number_word(3), number_word(12)
        ('three', '12')
    """
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def capitalised(sentence: str) -> str:
    """The sentence with a capital first letter."""
    return sentence[:1].upper() + sentence[1:]


def refines(first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]]) -> bool:
    """Whether all that the first description fits fits the second one, too.

    Example:
        >>> refines((("color", "red"), ("shape", "cube")), (("shape", "cube"),))
        True
    """
    return set(second) <= set(first)
