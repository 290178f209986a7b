"""Edits that make a caption false by a small change: swapped, reversed or replaced words.

In: one tagged caption. Out: edits of its words. Never: the text of the new caption.
The kinds of change are those of Yuksekgonul et al. 2023 (NegCLIP, section 4: swaps of nouns and
adjectives), Hsieh et al. 2023 (SugarCrepe, section 4: swap and replace) and Doveh et al. 2023
(section 3.1: replacement of a word by another of its kind).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from random import Random
from typing import ClassVar, Literal

from typing_extensions import override

from vlmtune.config import Configured
from vlmtune.language.lexicon import groups, is_plural, relations, word_set
from vlmtune.language.phrases import (
    NounPhrase,
    compatible,
    denied_words,
    holders_alike,
    interchangeable,
    noun_phrases,
)
from vlmtune.language.vocabulary import Vocabulary
from vlmtune.language.words import Edits, Sentence

Words = Vocabulary | None
Fits = Callable[[Sentence, int], bool]
"""Whether the word at a position of a sentence may be changed."""
TRIES = 8  # replacements per position
BETWEEN_ADJECTIVES = frozenset({"ADJ", "CCONJ", "PUNCT"})  # of one list
SKIN_COLORS = frozenset({"black", "white", "brown"})  # of people, in place of their clothes
# By kind of word, the list of the lexicon whose words replace no other word.
EXCLUDED = {
    "NOUN": "light_nouns",
    "ADJ": "quantifiers",
    "ADP": "particles",
    "NUM": "round_numbers",
}


class Rule(Configured, ABC):
    """One kind of change."""

    needs_words: ClassVar[bool] = False  # whether the rule needs words of a corpus

    @abstractmethod
    def rewrites(self, sentence: Sentence, rng: Random, words: Words) -> Iterator[Edits]:
        """Yields edits in random order, each of which usually makes the caption false."""


class SwapNouns(Rule):
    """Swaps two nouns: "a dog chases a cat" becomes "a cat chases a dog".

    Both are singular or both plural, so that verbs and articles still agree. If the order is free
    ("a dog and a cat", "a cat next to a dog"), they are swapped only if adjectives or numerals
    distinguish them.
    """

    @override
    def rewrites(self, sentence: Sentence, rng: Random, words: Words) -> Iterator[Edits]:
        if _one_and_other(sentence):
            return
        for a, b in _pairs(sentence, rng):
            if a.plural != b.plural or a.light or b.light:
                continue
            # "a man with equipment" would become "an equipment with man".
            if not a.plural and _has_determiner(sentence, a) != _has_determiner(sentence, b):
                continue
            # "a man and a person" may name one man.
            if compatible(a.head, b.head):
                continue
            # "a dog and a cat" names the same in turn.
            order_is_free = interchangeable(sentence, a, b) or holders_alike(sentence, a, b)
            if order_is_free and (a.modifiers == b.modifiers or _shared(sentence, a, b)):
                continue
            if _names_skin(a, b.adjectives) or _names_skin(b, a.adjectives):
                continue
            first = (a.noun, a.stop)
            second = (b.noun, b.stop)
            yield {first: b.nouns, second: a.nouns}


class SwapAdjectives(Rule):
    """Swaps two adjectives: "the red car and the old bus" becomes "the old car and the red bus".

    They may also follow their nouns ("the car is red and the bus is old").
    """

    @override
    def rewrites(self, sentence: Sentence, rng: Random, words: Words) -> Iterator[Edits]:
        if _one_and_other(sentence):
            return
        # An adjective after its noun ("the car is red") is in no noun phrase.
        phrase_of: dict[int, NounPhrase] = {}
        for phrase in noun_phrases(sentence):
            positions = range(phrase.start, phrase.noun)
            phrase_of |= dict.fromkeys(positions, phrase)
        # Quantifiers such as "many" describe no object, so swapping them proves nothing.
        adjectives = _positions(sentence, "ADJ", _descriptive)
        pairs = list(combinations(adjectives, 2))
        for i, j in _shuffled(pairs, rng):
            first = sentence.words[i]
            second = sentence.words[j]
            if compatible(first, second):
                continue
            a = phrase_of.get(i)
            b = phrase_of.get(j)
            if a and b and _order_is_free(sentence, a, b):
                continue
            # "black and white"
            if BETWEEN_ADJECTIVES.issuperset(sentence.tags[i + 1 : j]):
                continue
            if a and _doubled(a, first, second):
                continue
            if b and _doubled(b, second, first):
                continue
            if (a and _names_skin(a, [second])) or (b and _names_skin(b, [first])):
                continue
            first_span = (i, i + 1)
            second_span = (j, j + 1)
            yield {first_span: [second], second_span: [first]}


class ExchangeAttributes(Rule):
    """Swaps all adjectives of two nouns: "a big red bus and a car", "a bus and a big red car".

    Where one noun has none, its object may have the attribute as well: 3 of 29 captions that
    were edited so were still true of their photographs. "a glass full of red wine" stays.
    """

    @override
    def rewrites(self, sentence: Sentence, rng: Random, words: Words) -> Iterator[Edits]:
        if _one_and_other(sentence):
            return
        for a, b in _pairs(sentence, rng):
            if a.light or b.light:
                continue
            first_adjectives = _lower(a.adjectives)
            second_adjectives = _lower(b.adjectives)
            # "many dogs" and "a cat" would exchange a number rather than an attribute.
            if not word_set("quantifiers").isdisjoint(first_adjectives + second_adjectives):
                continue
            if first_adjectives == second_adjectives or _order_is_free(sentence, a, b):
                continue
            if not (first_adjectives and second_adjectives) and _is_part(sentence, a, b):
                continue
            if _shared(sentence, a, b):
                continue
            if _names_skin(a, b.adjectives) or _names_skin(b, a.adjectives):
                continue
            # "a very tall giraffe and a tree" would become "a very tree".
            tags_before = (sentence.tag(a.start - 1), sentence.tag(b.start - 1))
            if "ADV" in tags_before:
                continue
            first = (a.start, a.noun)
            second = (b.start, b.noun)
            yield {first: b.adjectives, second: a.adjectives}


class ReverseRelation(Rule):
    """Reverses a relation: left of and right of, above and below, on and under."""

    @override
    def rewrites(self, sentence: Sentence, rng: Random, words: Words) -> Iterator[Edits]:
        low = _lower(sentence.words)
        # The longest relations come first and take their words: "on top of" before "on".
        taken: set[int] = set()
        edits: list[Edits] = []
        for phrase, reverse in relations():
            for start in range(len(low) - len(phrase) + 1):
                stop = start + len(phrase)
                positions = range(start, stop)
                if low[start:stop] != phrase or not taken.isdisjoint(positions):
                    continue
                taken.update(positions)
                if len(phrase) == 1 and not _states_relation(sentence, start):
                    continue
                # Boxes "on top of each other" are under each other as well.
                mutual = low[stop : stop + 2] in (("each", "other"), ("one", "another"))
                if mutual or _is_denied(sentence, start):
                    continue
                edits.append({(start, stop): reverse})
        yield from _shuffled(edits, rng)


class ReplaceWord(Rule):
    """Replaces a word by another of its kind from the corpus, in proportion to their counts.

    Nouns keep their number, verbs their form and whether an object follows; colours, materials,
    sizes and the like stay in their group. The new word is not in the caption, and is not one
    that may be true of the same object ("man" and "person"). Each position is tried up to eight
    times.

    Args:
        tag: Kind of the word: "NOUN", "ADJ", "VERB", "ADP" or "NUM".
    """

    needs_words: ClassVar[bool] = True

    def __init__(self, tag: Literal["NOUN", "ADJ", "VERB", "ADP", "NUM"] = "NOUN") -> None:
        self.tag = tag

    @override
    def rewrites(self, sentence: Sentence, rng: Random, words: Words) -> Iterator[Edits]:
        assert words is not None, "`Rewriter.learn` counts the words of a corpus first"
        # All positions once, then all again: one unlucky draw blocks no position.
        positions = _shuffled(self._spans(sentence), rng)
        for _ in range(TRIES):
            for start, stop in positions:
                new = self._sample(sentence, stop - 1, words, rng)
                if new:
                    yield {(start, stop): [new]}

    def _spans(self, sentence: Sentence) -> list[tuple[int, int]]:
        """The words that may be replaced: all nouns of a phrase together, others one by one."""
        if self.tag != "NOUN":
            fits = FITS.get(self.tag, _any_word)
            positions = _positions(sentence, self.tag, fits)
            return [(i, i + 1) for i in positions]
        spans = []
        for phrase in _stated(sentence):
            # Names are kept: another name may be true as well.
            named = "PROPN" in sentence.tags[phrase.noun : phrase.stop]
            # "two sheep" would become "two dog".
            alike = phrase.plural == is_plural(phrase.head)
            if alike and not phrase.light and not named:
                spans.append((phrase.noun, phrase.stop))
        return spans

    def _sample(
        self, sentence: Sentence, position: int, words: Vocabulary, rng: Random
    ) -> str | None:
        # Running sums of the counts, so that frequent words come more often.
        old = sentence.words[position]
        candidates, sums = words.like(old, self.tag, sentence.tag(position + 1))
        if not candidates:
            return None
        (new,) = rng.choices(candidates, cum_weights=sums)
        if self.tag in EXCLUDED and new in word_set(EXCLUDED[self.tag]):
            return None
        # A word that may be true of an object of the caption would not make it false.
        others = (old,) if self.tag == "ADP" else sentence.words
        if any(compatible(new, word) for word in others):
            return None
        return new


def _has_determiner(sentence: Sentence, phrase: NounPhrase) -> bool:
    """Whether "a", "this", "one" or "his" stands before the phrase."""
    return sentence.tag(phrase.start - 1) in ("DET", "NUM", "PRON")


def _pairs(sentence: Sentence, rng: Random) -> list[tuple[NounPhrase, NounPhrase]]:
    pairs = list(combinations(_stated(sentence), 2))
    return _shuffled(pairs, rng)


def _stated(sentence: Sentence) -> list[NounPhrase]:
    """The noun phrases that are not denied: "no dog" stays true of most images as "no cat"."""
    denied = denied_words(sentence)
    return [phrase for phrase in noun_phrases(sentence) if phrase.noun not in denied]


def _lower(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.lower() for word in words)


def _shuffled(items: list, rng: Random) -> list:
    return rng.sample(items, len(items))


def _positions(sentence: Sentence, tag: str, fits: Fits) -> list[int]:
    """The words with a tag that fit and are not denied, as positions in the sentence."""
    denied = denied_words(sentence)
    positions = []
    for i, kind in enumerate(sentence.tags):
        if kind == tag and i not in denied and fits(sentence, i):
            positions.append(i)
    return positions


def _any_word(sentence: Sentence, position: int) -> bool:
    return True


def _descriptive(sentence: Sentence, position: int) -> bool:
    """Whether an adjective alone describes an object, unlike "many", "full of", "taller than"."""
    if sentence.word(position + 1) in ("of", "than"):
        return False
    return sentence.words[position].lower() not in word_set("quantifiers")


def _locative(sentence: Sentence, position: int) -> bool:
    """Whether a preposition says where an object is and is not part of "in front of"."""
    if sentence.words[position].lower() in word_set("particles"):
        return False
    before = sentence.word(position - 1)
    after = sentence.word(position + 1)
    if not word_set("light_nouns").isdisjoint((before.lower(), after.lower())):
        return False
    return _relates(sentence, position) and not _is_denied(sentence, position)


def _is_denied(sentence: Sentence, position: int) -> bool:
    """Whether the relation that begins here is denied: "not on a box", "no cat on a box"."""
    return not denied_words(sentence).isdisjoint((position - 1, position))


def _order_is_free(sentence: Sentence, first: NounPhrase, second: NounPhrase) -> bool:
    """Whether either order means the same: "a red car and a blue car"."""
    if not compatible(first.head, second.head):
        return False
    return interchangeable(sentence, first, second) or holders_alike(sentence, first, second)


def _one_and_other(sentence: Sentence) -> bool:
    """Whether a caption tells two like objects apart: "one is black, the other is white"."""
    low = _lower(sentence.words)
    if "one" not in low:
        return False
    for i, word in enumerate(low):
        if word not in ("other", "others", "another"):
            continue
        # A pronoun that is the subject, unlike "other cars", "each other" and "in the other".
        has_noun = sentence.tag(i + 1) in ("NOUN", "PROPN", "ADJ", "NUM")
        before = sentence.word(i - 1).lower()
        start = i - 1 if before == "the" else i
        after_preposition = sentence.tag(start - 1) == "ADP"
        if not has_noun and not after_preposition and before != "each":
            return True
    return False


def _doubled(phrase: NounPhrase, old: str, new: str) -> bool:
    """Whether a phrase has a word like the new one: "a large large spoon", "a large small cube"."""
    group_of = groups()
    group = group_of.get(new.lower())
    if group is None or group == group_of.get(old.lower()):
        return new.lower() in phrase.modifiers
    return any(group_of.get(word) == group for word in phrase.modifiers)


def _names_skin(phrase: NounPhrase, adjectives: Sequence[str]) -> bool:
    """Whether adjectives would say the colour of a person's skin, which is often true.

    "A man in a white shirt" would become "a white man in a shirt".
    """
    is_person = compatible(phrase.head, "person") and not phrase.light
    return is_person and not SKIN_COLORS.isdisjoint(_lower(adjectives))


def _shared(sentence: Sentence, first: NounPhrase, second: NounPhrase) -> bool:
    """Whether the adjectives of one object may be of both: "a white shirt and skirt"."""
    if second.adjectives or second.number:
        return False
    return {"NOUN", "CCONJ", "PUNCT"}.issuperset(sentence.tags[first.stop : second.start])


def _is_part(sentence: Sentence, first: NounPhrase, second: NounPhrase) -> bool:
    """Whether one object holds the other or is made of it: "a glass filled with wine"."""
    between = _lower(sentence.words[first.stop : second.start])
    if {"of", "filled", "full"}.isdisjoint(between):
        return False
    return {"of", "with", "filled", "full", "is", "a", "an", "the"}.issuperset(between)


def _states_relation(sentence: Sentence, position: int) -> bool:
    """Whether a preposition relates two objects, unlike "with no", "over 20" and "on display"."""
    if not _relates(sentence, position):
        return False
    before = sentence.word(position - 1).lower()
    word = sentence.word(position).lower()
    after = sentence.word(position + 1).lower()
    if word in ("with", "without"):
        return after not in ("no", "nothing", "any") and not _participle(sentence, position - 1)
    if word == "over":
        return not after[0].isdigit() and before != "all"
    if word != "on":
        return True
    if after in word_set("idioms_with_on"):
        return False
    # The noun after it, as in "on a sunny day".
    for phrase in noun_phrases(sentence):
        if phrase.noun > position:
            return phrase.head.lower() not in word_set("times")
    return True


def _participle(sentence: Sentence, position: int) -> bool:
    """Whether a word is a verb such as "filled", with which "with" is one word."""
    if sentence.tag(position) != "VERB":
        return False
    word = sentence.words[position].lower()
    return word.endswith("ed") or word in word_set("participles")


def _relates(sentence: Sentence, position: int) -> bool:
    """Whether a preposition has an object after it, and before it no word that it belongs to."""
    if sentence.tags[position] != "ADP":
        return False
    before = sentence.word(position - 1).lower()
    if before in ("depending", "based", "along", "together", "up", "down", "out"):
        return False
    # An object follows: "on a box", not "the lamp is on".
    return sentence.tag(position + 1) in ("DET", "PRON", "NUM", "ADJ", "NOUN", "PROPN")


def _counts(sentence: Sentence, position: int) -> bool:
    """Whether a numeral stands alone before a noun, unlike "a dozen" and "dozens of"."""
    return sentence.words[position].lower() not in word_set("round_numbers")


FITS: dict[str, Fits] = {"ADJ": _descriptive, "ADP": _locative, "NUM": _counts}
"""Which words of a kind may be replaced; any word of the other kinds may."""
