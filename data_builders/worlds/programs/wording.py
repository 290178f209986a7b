"""Words for descriptions, relations and answers, with synonyms.

In: values of parameters and a random generator. Out: words for the fields of templates. Never: a
change of what the values mean.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_builders.phrases import plural, with_article
from data_builders.worlds.programs.scene_graph import ATTRIBUTES
from data_builders.worlds.programs.sentences import Texts
from vlmtune.config import find_path
from vlmtune.errors import UserError
from vlmtune.storage.files import reading, regular

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
_FIELD = re.compile(r"\{.*?\}")  # of a template


@dataclass(frozen=True)
class Wording:
    """Which words statements may have, and how many; None for any.

    Without synonyms, values and relations have one word each.

    Example:
        >>> wording = Wording(vocabulary=frozenset(["there", "is", "a", "sphere"]), max_words=4)
        >>> wording.allows("there is a sphere"), wording.allows("there is a ball")
        (True, False)
        >>> wording.spellings("sphere"), wording.knows("there is {aA}")
        (('sphere',), True)
    """

    synonyms: bool = True
    vocabulary: frozenset[str] | None = None
    max_words: int | None = None

    def knows(self, text: str) -> bool:
        """Whether the vocabulary has all words of a text, the fields of a template aside."""
        return self.vocabulary is None or self.vocabulary.issuperset(_FIELD.sub("", text).split())

    def allows(self, statement: str) -> bool:
        """Whether a statement has known words alone, and not too many."""
        short = self.max_words is None or len(statement.split()) <= self.max_words
        return short and self.knows(statement)

    def spellings(self, word: str) -> Sequence[str]:
        """The known synonyms of a value or relation; the first of all where none is known."""
        every = SYNONYMS.get(word, (word,))
        known = tuple(one for one in every if self.knows(one)) or every[:1]
        return known if self.synonyms else known[:1]

    def rows(self, texts: Texts) -> Sequence[Mapping[str, str]]:
        """The templates of statements, of which those for all answers have known words."""
        if self.vocabulary is None:
            return texts.statements
        every = (*texts.statements, *texts.plain)
        return [row for row in every if all(map(self.knows, row.values()))]


def read_vocabulary(path: Path | None) -> frozenset[str] | None:
    """Returns the words of a file, one a line; None without a file."""
    if path is None:
        return None
    file = find_path(path) or path
    with reading(path, "a vocabulary"):
        lines = regular(file).read_text(encoding="utf-8").splitlines()
    words = frozenset(line.strip() for line in lines) - {""}
    bad = [word for word in sorted(words) if len(word.split()) > 1]
    if bad or not words:
        came = repr(bad[0]) if bad else "no word"
        raise UserError(
            f"expected one word a line in {path}, got {came}: pass a file such as vocabulary.txt"
        )
    return words


def fields(
    descriptions: Mapping[str, Description],
    relations: Mapping[str, str],
    rng: random.Random,
    wording: Wording,
) -> dict[str, str]:
    """Returns the words for a template's fields: descriptions and relations by parameter.

    Example:
        >>> words = fields({"A": (("size", "small"), ("color", "red"))}, {"r": "left"},
        ...                random.Random(0), Wording(synonyms=False))
        >>> words["As"], words["aA"], words["r"]
        ('small red things', 'a small red thing', 'left of')
    """

    def chosen(word: str) -> str:
        known = wording.spellings(word)
        return rng.choice(known) if wording.synonyms else known[0]

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


def number_word(number: int) -> str:
    """The number in words up to ten.

    Example:
        >>> number_word(3), number_word(12)
        ('three', '12')
    """
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def refines(first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]]) -> bool:
    """Whether all that the first description fits fits the second one, too.

    Example:
        >>> refines((("color", "red"), ("shape", "cube")), (("shape", "cube"),))
        True
    """
    return set(second) <= set(first)
