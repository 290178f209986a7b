"""The word lists of `lexicon.json`, and the forms of words.

In: names of lists, and words. Out: words.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

VOWELS = frozenset("aeiou")
Phrase = tuple[str, ...]


@cache
def _lists() -> Mapping[str, Any]:
    path = Path(__file__).with_name("lexicon.json")
    return json.loads(path.read_text(encoding="utf-8"))


def _words(lines: Sequence[str]) -> list[str]:
    text = " ".join(lines)
    return text.split()


@cache
def word_set(name: str) -> frozenset[str]:
    """The words of a list, such as "light_nouns"."""
    return frozenset(_words(_lists()[name]))


@cache
def tags() -> Mapping[str, tuple[str, ...]]:
    """The tags a known word can have, the usual one first.

    Example:
        >>> tags()["the"], tags()["sitting"], tags()["wave"], tags()["orange"]
        (('DET',), ('VERB',), ('NOUN', 'VERB'), ('ADJ', 'NOUN'))
    """
    # A dictionary for its order: the first tag of a word is the usual one.
    open_tags: dict[str, dict[str, None]] = {}
    for word, tag in _open_words():
        open_tags.setdefault(word, {})[tag] = None
    known = {word: tuple(options) for word, options in open_tags.items()}
    # Words of closed classes have one tag, whatever else is spelt like them.
    for tag, lines in _lists()["closed"].items():
        known |= dict.fromkeys(_words(lines), (tag,))
    return known


def _open_words() -> Iterator[tuple[str, str]]:
    """Words with their tags, the usual tag of a word first."""
    lists = _lists()
    for noun in _words(lists["nouns_first"]):
        yield noun, "NOUN"
        yield plural(noun), "NOUN"
    for group in lists["adjectives"].values():
        for adjective in _words(group):
            yield adjective, "ADJ"
    for verb in _words(lists["verbs"]):
        for form in forms(verb):
            yield form, "VERB"
    # Forms that no rule of spelling gives.
    for form in word_set("irregular") | word_set("participles"):
        yield form, "VERB"
    # These nouns come last, as each may also be a verb and is that more often.
    for noun in _words(lists["nouns"]):
        yield noun, "NOUN"
        yield plural(noun), "NOUN"


@cache
def groups() -> Mapping[str, str]:
    """The group of each adjective, such as "colour" or "size"; adjectives of "other" have none.

    Example:
        >>> groups()["red"], groups()["tiny"], "happy" in groups()
        ('colour', 'size', False)
    """
    group_of: dict[str, str] = {}
    for name, lines in _lists()["adjectives"].items():
        if name != "other":
            for word in _words(lines):
                group_of[word] = name
    return group_of


@cache
def relations() -> tuple[tuple[Phrase, Phrase], ...]:
    """Phrases and their opposites, such as "left of" and "right of", the longest first."""
    opposites: dict[Phrase, Phrase] = {}
    for relation, opposite in _lists()["relations"]:
        phrase = tuple(relation.split())
        reverse = tuple(opposite.split())
        # The first opposite of a phrase stays: "over" becomes "under", and not "underneath".
        opposites.setdefault(phrase, reverse)
        opposites.setdefault(reverse, phrase)
    longest_first = sorted(opposites, key=len, reverse=True)
    return tuple((phrase, opposites[phrase]) for phrase in longest_first)


@cache
def synonyms() -> Mapping[str, frozenset[str]]:
    """Words that may be true of the same object: synonyms, hypernyms and hyponyms.

    Example:
        >>> "person" in synonyms()["man"], "dog" in synonyms()["man"]
        (True, False)
    """
    synonyms_of: dict[str, frozenset[str]] = {}
    for line in _lists()["synonyms"]:
        words = frozenset(line.split())
        # A word of several lines is a synonym of the words of each.
        for word in words:
            known = synonyms_of.get(word, frozenset())
            synonyms_of[word] = known | words
    return synonyms_of


@cache
def forms(verb: str) -> tuple[str, ...]:
    """The regular forms of a verb: base, third person, -ing, -ed.

    Example:
        >>> forms("ride"), forms("swim"), forms("carry")
        (('ride', 'rides', 'riding', 'rided'), ('swim', 'swims', 'swimming', 'swimmed'), \
('carry', 'carries', 'carrying', 'carried'))
    """
    gerund = _stem(verb, "ing") + "ing"
    past = _stem(verb, "ed") + "ed"
    return verb, plural(verb), gerund, past


def _stem(verb: str, ending: str) -> str:
    past = ending == "ed"
    if verb.endswith("ie") and not past:
        return f"{verb[:-2]}y"  # "lying"
    if verb.endswith("e"):
        # "riding", but "seeing"; the past drops the e of both.
        if past or not verb.endswith(("ee", "oe", "ye")):
            return verb[:-1]
        return verb
    if past and verb.endswith("y") and verb[-2:-1] not in VOWELS:
        return f"{verb[:-1]}i"  # "carried"
    if _doubles(verb):
        return verb + verb[-1]  # "swimming"
    return verb


def _doubles(verb: str) -> bool:
    """Whether the last consonant doubles: one syllable with one vowel before it."""
    last = verb[-1:]
    vowel = verb[-2:-1]
    before_vowel = verb[-3:-2]
    if last in VOWELS | set("wxy") or vowel not in VOWELS or before_vowel in VOWELS:
        return False
    syllables = sum(a in VOWELS and b not in VOWELS for a, b in pairwise(verb))
    return syllables == 1 or verb == "begin"


def plural(noun: str) -> str:
    """The regular plural of a noun; also the third person of a verb.

    Example:
        >>> [plural(noun) for noun in ("dog", "bus", "city", "boy", "bench")]
        ['dogs', 'buses', 'cities', 'boys', 'benches']
    """
    if noun.endswith("y") and noun[-2:-1] not in VOWELS:
        return f"{noun[:-1]}ies"
    if noun.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{noun}es"
    return f"{noun}s"


def is_plural(noun: str) -> bool:
    """Whether a noun is a plural, by its ending.

    Example:
        >>> [is_plural(noun) for noun in ("dogs", "bus", "women", "zebras", "glass", "skis")]
        [True, False, True, True, False, True]
    """
    word = noun.lower()
    if word in word_set("irregular_plurals"):
        return True
    if word.endswith("men") and len(word) > 4:
        return True
    if not word.endswith("s") or len(word) <= 2:
        return False
    return not word.endswith(("ss", "us", "is")) and word not in word_set("singular_in_s")
