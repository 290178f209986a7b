"""Noun phrases of a tagged caption.

In: words and their tags. Out: where each noun phrase begins and ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmtune.language.lexicon import is_plural, synonyms, word_set
from vlmtune.language.words import Sentence

LIST_TAGS = frozenset({"DET", "NUM", "ADJ", "NOUN", "PROPN", "PUNCT", "CCONJ"})
# The last three as in "free of", "lacking" and "instead of".
_DENIALS = "no not n't without zero neither nor never none free lacking instead"
DENIALS = frozenset(_DENIALS.split())
LINKING_TAGS = frozenset({"PUNCT", "CCONJ", "DET"})
PASSED_TAGS = frozenset({"DET", "ADV", "AUX", "VERB"})  # between a denial and what it denies


@dataclass(frozen=True)
class NounPhrase:
    """Adjectives from `start` and nouns from `noun` up to `stop`, with the numeral before them.

    The last noun is the head: "truck" in "big red fire truck".
    """

    start: int
    noun: int
    stop: int
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    number: str = ""

    @property
    def whole(self) -> int:
        """Where the phrase begins, with its numeral."""
        return self.start - 1 if self.number else self.start

    @property
    def head(self) -> str:
        """The last noun."""
        return self.nouns[-1]

    @property
    def plural(self) -> bool:
        """Whether the head is a plural, by its ending or its numeral: "two sheep"."""
        return is_plural(self.head) or self.number.lower() not in ("", "one", "1")

    @property
    def light(self) -> bool:
        """Whether the noun names no object: "front" in "in front of", "group" in "a group of"."""
        if len(self.nouns) > 1:
            return False
        return self.head.lower() in word_set("light_nouns")

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The words that distinguish the object from others of its kind, in lower case."""
        # In lower case, as the first word of a caption has a capital.
        modifiers = (*self.adjectives, self.number)
        return tuple(word.lower() for word in modifiers)


def noun_phrases(sentence: Sentence) -> list[NounPhrase]:
    """The noun phrases of a caption, in order.

    Example:
        >>> tags = ("DET", "ADJ", "CCONJ", "ADJ", "NOUN", "NOUN")
        >>> words = tuple("a black and white fire truck".split())
        >>> (phrase,) = noun_phrases(Sentence(words, ("",) * 7, tags))
        >>> phrase.adjectives, phrase.nouns
        (('black', 'and', 'white'), ('fire', 'truck'))
    """
    words = sentence.words
    tags = sentence.tags
    phrases = []
    noun = 0
    while noun < len(words):
        if tags[noun] not in ("NOUN", "PROPN"):
            noun += 1
            continue
        # All nouns in a row are one name: "fire truck".
        stop = noun
        while stop < len(words) and tags[stop] in ("NOUN", "PROPN"):
            stop += 1
        start = _modified_from(tags, noun)
        number = ""
        if start and tags[start - 1] == "NUM":
            number = words[start - 1]
        adjectives = words[start:noun]
        nouns = words[noun:stop]
        phrases.append(NounPhrase(start, noun, stop, adjectives, nouns, number))
        noun = stop
    return phrases


def denied_words(sentence: Sentence) -> set[int]:
    """The words that a caption denies, as positions: "no cat or dog", "not wearing a hat".

    Example:
        >>> words = tuple("a man without a hat".split())
        >>> tags = ("DET", "NOUN", "ADP", "DET", "NOUN")
        >>> sorted(denied_words(Sentence(words, ("",) * 6, tags)))
        [3, 4]
    """
    denied = {i for i in range(len(sentence.words)) if _denied(sentence, i)}
    end = -1  # of the phrase before, if it is denied
    for phrase in noun_phrases(sentence):
        zero = sentence.words[phrase.whole].lower() in DENIALS
        # A denial goes on through a list: "no cat, dog or bird".
        listed = end >= 0 and _listed(sentence, end, phrase.whole)
        end = -1
        if zero or listed or phrase.whole in denied:
            denied.update(range(phrase.whole, phrase.stop))
            end = phrase.stop
    return denied


def _listed(sentence: Sentence, start: int, stop: int) -> bool:
    """Whether only commas, conjunctions and articles stand between two phrases."""
    words = [word.lower() for word in sentence.words[start:stop]]
    return "but" not in words and LINKING_TAGS.issuperset(sentence.tags[start:stop])


def _denied(sentence: Sentence, start: int) -> bool:
    """Whether a denial goes as far as a word: "no cat", "not wearing a hat", "free of people"."""
    for position in range(start - 1, -1, -1):
        word = sentence.words[position].lower()
        if word in DENIALS:
            return True
        if word != "of" and sentence.tags[position] not in PASSED_TAGS:
            return False
    return False


def _modified_from(tags: Sequence[str], noun: int) -> int:
    start = noun
    while start and tags[start - 1] == "ADJ":
        start -= 1
        # "black and white", "big, red": the adjective before belongs to the phrase too.
        if start > 1 and start < noun and tags[start - 1] in ("CCONJ", "PUNCT"):
            start -= tags[start - 2] == "ADJ"
    return start


def compatible(first: str, second: str) -> bool:
    """Whether two words are the same or may both be true of one object.

    Example:
        >>> compatible("Man", "person"), compatible("dog", "dogs"), compatible("dog", "cat")
        (True, True, False)
    """
    a = first.lower()
    b = second.lower()
    if a == b or a in (f"{b}s", f"{b}es") or b in (f"{a}s", f"{a}es"):
        return True
    return b in synonyms().get(a, ())


def holders_alike(sentence: Sentence, first: NounPhrase, second: NounPhrase) -> bool:
    """Whether two like objects have two phrases: "a man on a bike and a man on a horse".

    What they exchange gives the same picture in another order.
    """
    phrases = [phrase for phrase in noun_phrases(sentence) if not phrase.light]
    holders = []
    joined = []
    for phrase in (first, second):
        before = [other for other in phrases if other.stop <= phrase.start]
        if not before:
            return False
        holder = before[-1]
        between = sentence.words[holder.stop : phrase.start]
        holders.append(holder)
        joined.append([word.lower() for word in between])
    one, other = holders
    if other in (one, first) or joined[0] != joined[1]:
        return False
    alike = one.head.lower() == other.head.lower() and one.modifiers == other.modifiers
    return alike and interchangeable(sentence, first, other)


def interchangeable(sentence: Sentence, first: NounPhrase, second: NounPhrase) -> bool:
    """Whether only "and", "next to" or the like is between two phrases, so that order is free."""
    # In a list further phrases are between them: "apples, meat and potatoes".
    if LIST_TAGS.issuperset(sentence.tags[first.stop : second.start]):
        return True
    for i in range(first.stop, second.start):
        word = sentence.words[i].lower()
        determiner = sentence.tags[i] in ("DET", "NUM") or word in word_set("possessives")
        if not determiner and word not in word_set("symmetric"):
            return False
    return True
