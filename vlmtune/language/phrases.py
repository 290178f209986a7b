"""Noun phrases of a tagged caption."""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmtune.language.lexicon import is_plural, synonyms, word_set
from vlmtune.language.words import Sentence


@dataclass(frozen=True)
class NounPhrase:
    """Adjectives and the nouns they stand before; "big red fire truck" is one.

    Attributes:
        start: Place of the first adjective, or of the first noun where there is none.
        noun: Place of the first noun.
        stop: One past the last noun.
        adjectives: The words before the noun.
        nouns: The nouns, of which the last is the head.
        number: The numeral before, or "".
    """

    start: int
    noun: int
    stop: int
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    number: str = ""

    @property
    def plural(self) -> bool:
        """Whether the head is a plural."""
        return is_plural(self.nouns[-1])

    @property
    def light(self) -> bool:
        """Whether the noun names no thing: the "front" of "in front of", a "group" of."""
        return len(self.nouns) == 1 and self.nouns[0].lower() in word_set("light_nouns")

    @property
    def modifiers(self) -> tuple[str, ...]:
        """What tells this thing from others of its kind, in lower case."""
        return tuple(word.lower() for word in (*self.adjectives, self.number))


def noun_phrases(sentence: Sentence) -> list[NounPhrase]:
    """The noun phrases of a caption, in order.

    Example:
        >>> tags = ("DET", "ADJ", "CCONJ", "ADJ", "NOUN", "NOUN")
        >>> words = tuple("a black and white fire truck".split())
        >>> (phrase,) = noun_phrases(Sentence(words, ("",) * 7, tags))
        >>> phrase.adjectives, phrase.nouns
        (('black', 'and', 'white'), ('fire', 'truck'))
    """
    found, at = [], 0
    while at < len(sentence.words):
        if sentence.tags[at] not in ("NOUN", "PROPN"):
            at += 1
            continue
        stop = at
        while stop < len(sentence.words) and sentence.tags[stop] in ("NOUN", "PROPN"):
            stop += 1
        start = _modified_from(sentence.tags, at)
        number = sentence.words[start - 1] if start and sentence.tags[start - 1] == "NUM" else ""
        words = sentence.words
        found.append(NounPhrase(start, at, stop, words[start:at], words[at:stop], number))
        at = stop
    return found


def _modified_from(tags: Sequence[str], noun: int) -> int:
    start = noun
    while start and tags[start - 1] == "ADJ":
        start -= 1
        if start > 1 and start < noun and tags[start - 1] in ("CCONJ", "PUNCT"):
            start -= tags[start - 2] == "ADJ"
    return start


def alike(one: str, other: str) -> bool:
    """Whether two words are one, or may both be true of the same thing.

    Example:
        >>> alike("Man", "person"), alike("dog", "dogs"), alike("dog", "cat")
        (True, True, False)
    """
    a, b = one.lower(), other.lower()
    return a in (b, f"{b}s", f"{b}es") or b in (f"{a}s", f"{a}es") or b in synonyms().get(a, ())


def interchangeable(sentence: Sentence, first: NounPhrase, second: NounPhrase) -> bool:
    """Whether only "and", "next to" and the like is between: either order says the same."""
    places = range(first.stop, second.start)
    return all(
        sentence.tags[i] in ("DET", "NUM") or sentence.words[i].lower() in word_set("symmetric")
        for i in places
    )
