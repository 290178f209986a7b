"""Rules that make a caption false by a small change: who does what, which is which, what is where.

A rule sees one tagged caption and says which words to put where. The kinds of change are those of
Yuksekgonul et al. 2023 (NegCLIP, section 4: swaps of nouns and adjectives), Hsieh et al. 2023
(SugarCrepe, section 4: swap and replace) and Doveh et al. 2023 (section 3.1: replacement of a word
by another of its kind).
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import combinations
from typing import ClassVar, Literal

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.lexicon import relations, word_set
from vlmtune.language.phrases import NounPhrase, alike, interchangeable, noun_phrases
from vlmtune.language.vocabulary import KINDS, Vocabulary
from vlmtune.language.words import Edits, Sentence

DRAWS = 8  # words that are tried in one place
UNFIT = {"NOUN": "light_nouns", "ADJ": "quantifiers", "ADP": "particles"}  # lists of the lexicon


class Rule(Configured, ABC):
    """One kind of change.

    Attributes:
        needs_words: True where words of a corpus are needed.
    """

    needs_words: ClassVar[bool] = False

    @abstractmethod
    def rewrites(
        self, sentence: Sentence, dice: random.Random, words: Vocabulary | None
    ) -> Iterator[Edits]:
        """Yields changes, each of which alone makes the caption false, in random order.

        Args:
            sentence: The tagged caption.
            dice: The only source of chance.
            words: Words of the corpus, where the rule needs them.
        """


class SwapNouns(Rule):
    """Two things change places: "a dog chases a cat" becomes "a cat chases a dog".

    Both are singular or both plural, so that verbs and articles still agree. Where the order says
    nothing ("a dog and a cat", "a cat next to a dog") nothing is swapped, unless adjectives or
    numerals stay where they were.
    """

    def rewrites(
        self, sentence: Sentence, dice: random.Random, words: Vocabulary | None
    ) -> Iterator[Edits]:
        """Yields each pair of nouns, exchanged."""
        for a, b in _pairs(sentence, dice):
            if a.plural != b.plural or a.light or b.light or alike(a.nouns[-1], b.nouns[-1]):
                continue
            if interchangeable(sentence, a, b) and a.modifiers == b.modifiers:
                continue
            yield {(a.noun, a.stop): b.nouns, (b.noun, b.stop): a.nouns}


class SwapAdjectives(Rule):
    """Two adjectives change places: "the red car is behind the old bus", "the old car ... red bus".

    They may also stand after their nouns ("the car is red and the bus is old").
    """

    def rewrites(
        self, sentence: Sentence, dice: random.Random, words: Vocabulary | None
    ) -> Iterator[Edits]:
        """Yields each pair of adjectives of different things, exchanged."""
        owner = {
            i: phrase for phrase in noun_phrases(sentence) for i in range(phrase.start, phrase.noun)
        }
        places = [i for i, tag in enumerate(sentence.tags) if tag == "ADJ" and _tells(sentence, i)]
        for i, j in _shuffled(list(combinations(places, 2)), dice):
            one, other = owner.get(i), owner.get(j)
            if alike(sentence.words[i], sentence.words[j]) or (one is not None and one is other):
                continue
            if one and other and _same_things(sentence, one, other):
                continue
            yield {(i, i + 1): [sentence.words[j]], (j, j + 1): [sentence.words[i]]}


class ExchangeAttributes(Rule):
    """Two things exchange all their adjectives, also none: "a bus and a big red car"."""

    def rewrites(
        self, sentence: Sentence, dice: random.Random, words: Vocabulary | None
    ) -> Iterator[Edits]:
        """Yields each pair of things, their adjectives exchanged."""
        for a, b in _pairs(sentence, dice):
            told = [w.lower() for w in a.adjectives], [w.lower() for w in b.adjectives]
            tells = not {*told[0], *told[1]} & word_set("quantifiers")
            if told[0] == told[1] or not tells or a.light or b.light:
                continue
            if _same_things(sentence, a, b):
                continue
            yield {(a.start, a.noun): b.adjectives, (b.start, b.noun): a.adjectives}


class ReverseRelation(Rule):
    """A relation becomes its reverse: left of and right of, above and below, on and under."""

    def rewrites(
        self, sentence: Sentence, dice: random.Random, words: Vocabulary | None
    ) -> Iterator[Edits]:
        """Yields each relation, reversed."""
        low = tuple(word.lower() for word in sentence.words)
        taken: set[int] = set()
        found: list[Edits] = []
        for phrase, reverse in relations():
            for start in range(len(low) - len(phrase)):
                stop = start + len(phrase)
                if low[start:stop] != phrase or taken & {*range(start, stop)}:
                    continue
                taken |= {*range(start, stop)}
                if len(phrase) > 1 or _relates(sentence, start):
                    found.append({(start, stop): reverse})
        yield from _shuffled(found, dice)


class ReplaceWord(Rule):
    """A word becomes another of its kind from the corpus, frequent ones more often.

    Nouns keep their number, verbs their form; colours, materials, sizes and the like become others
    of their group. A word that may be true of the same thing ("man" and "person"), and a word of
    the caption, is not taken.

    Args:
        tag: What is replaced: "NOUN", "ADJ", "VERB", "ADP" or "NUM".

    Raises:
        UserError: The tag is none of these.
    """

    needs_words: ClassVar[bool] = True

    def __init__(self, tag: Literal["NOUN", "ADJ", "VERB", "ADP", "NUM"] = "NOUN") -> None:
        if tag not in KINDS:
            raise UserError(f"expected a tag of {', '.join(KINDS)}, got {tag!r}: choose one")
        self.tag = tag

    def rewrites(
        self, sentence: Sentence, dice: random.Random, words: Vocabulary | None
    ) -> Iterator[Edits]:
        """Yields places with a word drawn for them; each place gets up to eight, in rounds.

        Raises:
            UserError: There are no words.
        """
        if words is None:
            raise UserError(
                "expected words of a corpus for ReplaceWord, got none: "
                "call `learn` with captions or name a vocabulary"
            )
        places = _shuffled(self._places(sentence), dice)
        for _ in range(DRAWS):
            for start, stop in places:
                new = self._drawn(sentence, stop - 1, words, dice)
                if new:
                    yield {(start, stop): [new]}

    def _places(self, sentence: Sentence) -> list[tuple[int, int]]:
        if self.tag == "NOUN":
            phrases = noun_phrases(sentence)
            return [(p.noun, p.stop) for p in phrases if not p.light and self._common(sentence, p)]
        fits = {"ADJ": _tells, "ADP": _places_things}.get(self.tag, lambda sentence, i: True)
        tags = enumerate(sentence.tags)
        return [(i, i + 1) for i, tag in tags if tag == self.tag and fits(sentence, i)]

    @staticmethod
    def _common(sentence: Sentence, phrase: NounPhrase) -> bool:
        return "PROPN" not in sentence.tags[phrase.noun : phrase.stop]

    def _drawn(
        self, sentence: Sentence, place: int, words: Vocabulary, dice: random.Random
    ) -> str | None:
        among, sums = words.like(sentence.words[place], self.tag)
        if not among:
            return None
        (new,) = dice.choices(among, cum_weights=sums)
        unfit = UNFIT.get(self.tag)
        if unfit and new in word_set(unfit):
            return None
        return None if any(alike(new, word) for word in sentence.words) else new


def _pairs(sentence: Sentence, dice: random.Random) -> list[tuple[NounPhrase, NounPhrase]]:
    return _shuffled(list(combinations(noun_phrases(sentence), 2)), dice)


def _shuffled(items: list, dice: random.Random) -> list:
    return dice.sample(items, len(items))


def _tells(sentence: Sentence, place: int) -> bool:
    """Whether an adjective says what a thing is like, and not how many or which."""
    return sentence.words[place].lower() not in word_set("quantifiers")


def _places_things(sentence: Sentence, place: int) -> bool:
    """Whether a preposition says where something is, and is no part of "in front of"."""
    near = [
        sentence.words[i].lower() for i in (place - 1, place + 1) if i in range(len(sentence.words))
    ]
    own = sentence.words[place].lower() not in word_set("particles")
    return own and _relates(sentence, place) and not word_set("light_nouns") & {*near}


def _same_things(sentence: Sentence, one: NounPhrase, other: NounPhrase) -> bool:
    """Whether either order says the same: "a red car and a blue car"."""
    return alike(one.nouns[-1], other.nouns[-1]) and interchangeable(sentence, one, other)


def _relates(sentence: Sentence, place: int) -> bool:
    """Whether a preposition has something behind it, and no other preposition beside it."""
    after = sentence.tags[place + 1] if place + 1 < len(sentence.tags) else ""
    before = sentence.words[place - 1].lower() if place else ""
    things = ("DET", "PRON", "NUM", "ADJ", "NOUN", "PROPN")
    return (
        sentence.tags[place] == "ADP" and after in things and before not in ("depending", "based")
    )
