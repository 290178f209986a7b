"""The rules of the `LexiconTagger`: tags by word lists, endings and neighbouring words.

In: the words of a sentence. Out: one tag a word. Never: a model or a download.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from vlmtune.language.lexicon import groups, is_plural, tags, word_set

NUMBER = re.compile(r"\d[\d.,:/]*(?:st|nd|rd|th|s)?")
ADJECTIVE = re.compile(
    r".{3,}(?:ous|less|able|ible|[^f]ful|ive|ern|[^dfr]ish|ical|iest|ese)|.{5,}(?:ic|al|ary)"
)
COMPOUND = re.compile(
    r".+-(?:\w+(?:ed|en|ing|y)|shaped|sized|size|style|old|free|like|top|worn|made|long|wide|high)"
    r"|(?:multi|semi|well|over|under|non|extra|ultra|pre)-\w+"
)
LONGEST = 8  # adjectives in a row
NOUNS = ("NOUN", "PROPN")
BOUNDARIES = ("PUNCT", "SCONJ", "CCONJ", "PRON")


@lru_cache(maxsize=65536)
def tagged(words: tuple[str, ...]) -> tuple[str, ...]:
    """Universal tags of the words of one sentence."""
    low = [word.lower().replace("’", "'") for word in words]
    options = list(map(_options, words, low, range(len(words))))
    context = _Context(low, options)
    # From left to right: a choice sees the tags before it and the options after it.
    for i in range(len(low)):
        context.tags.append(context.choose(i))
    return tuple(context.tags)


def _options(word: str, low: str, position: int) -> tuple[str, ...]:
    """The tags a word can have, the usual one first."""
    if not any(letter.isalnum() for letter in low) and low != "&" and low != "'":
        return ("PUNCT",)
    if NUMBER.fullmatch(low):
        return ("NUM",)
    if known := tags().get(low):
        return known
    if position and word[:1].isupper() and not word.isupper():
        return ("PROPN",)
    return _by_ending(low)


def _by_ending(low: str) -> tuple[str, ...]:
    if "-" in low:
        parts = [part for part in low.split("-") if part]
        known = [tags().get(part, ("NOUN",))[0] for part in parts] or ["NOUN"]
        adjective = COMPOUND.fullmatch(low) or known[0] == "NUM" or known[-1] == "ADJ"
        return ("ADJ",) if adjective else ("NOUN",)
    if low.endswith("ly") and len(low) > 4:
        return ("ADV",)
    if low.endswith(("ing", "ed")) and len(low) > 4:
        return ("VERB",)
    if ADJECTIVE.fullmatch(low):
        return ("ADJ",)
    for ending in ("er", "est"):  # comparatives
        stem = low.removesuffix(ending)
        if stem != low:
            # "smaller", "wider", "bigger", "happier"
            near = (stem, f"{stem}e", stem[:-1], f"{stem[:-1]}y")
            if any("ADJ" in tags().get(word, ()) and len(word) > 2 for word in near):
                return ("ADJ",)
    return ("NOUN",)


class _Context:
    """The tags before the next word, and the options after it."""

    def __init__(self, low: list[str], options: list[tuple[str, ...]]) -> None:
        self.low, self.options = low, options
        self.tags: list[str] = []

    def word(self, i: int) -> str:
        return self.low[i] if 0 <= i < len(self.low) else ""

    def can(self, i: int, *kinds: str) -> bool:
        """Whether word i, not tagged yet, can have one of the tags `kinds`."""
        return 0 <= i < len(self.low) and any(kind in self.options[i] for kind in kinds)

    def before(self, i: int, skip: Sequence[str] = ("ADV",)) -> tuple[str, str]:
        """The word before word i and its tag, skipping adverbs."""
        for j in range(i - 1, -1, -1):
            if self.tags[j] not in skip:
                return self.low[j], self.tags[j]
        return "", "START"

    def choose(self, i: int) -> str:
        word, options = self.low[i], self.options[i]
        if rule := WORDS.get(word):
            return rule(self, i)
        if options == ("ADP",):
            return self._adposition(i)
        return self._verb(i) if "VERB" in options else self._adjective(i)

    def nominal(self, i: int) -> bool:
        """Whether a noun phrase continues at word i: a noun, or an adjective before one."""
        for j in range(i, i + LONGEST):
            if self.can(j, "NOUN", "PROPN"):
                return True
            if not self.can(j, "ADJ"):
                return False
        return False

    def phrase(self, i: int) -> bool:
        """Whether word i is in a noun phrase whose noun has not come yet."""
        word, tag = self.before(i)
        return (
            tag in ("DET", "NUM", "ADJ") or word in word_set("possessives") or word in ("'s", "'")
        )

    def _adposition(self, i: int) -> str:
        if self.before(i)[1] == "DET" and self.nominal(i + 1):
            return "ADJ"  # "the opposite side", "an outside view"
        ends = i + 1 == len(self.low) or self.can(i + 1, "PUNCT", "CCONJ", "SCONJ")
        return "ADV" if ends and self.low[i] in word_set("clause_ends") else "ADP"

    def _adjective(self, i: int) -> str:
        """An adjective that may be a noun, such as "orange" or "metal"."""
        options, group = self.options[i], groups().get(self.low[i])
        if "ADJ" not in options:
            return options[0]
        if group != "material" and "NOUN" not in options:
            return "ADJ"
        if self.nominal(i + 1):
            return "ADJ"
        if self.phrase(i):
            return "NOUN"  # "a metal", "an orange"
        if group == "colour":
            return "ADJ"
        return "NOUN" if group == "material" else options[0]

    def _verb(self, i: int) -> str:
        """A verb that may be a noun or an adjective."""
        word, options = self.low[i], self.options[i]
        # "wave" may be a noun, "clean" an adjective.
        other = next((kind for kind in ("NOUN", "ADJ") if kind in options), "")
        if word.endswith("ing"):
            return self._gerund(i, other)
        if word.endswith("ed") or word in word_set("participles") | word_set("irregular"):
            return self._past(i, other)
        if other == "NOUN":
            return "VERB" if self._finite(i) else "NOUN"
        if other == "ADJ":
            attribute = self.phrase(i) or self.nominal(i + 1)
            return "ADJ" if attribute or self._after_be(i) else "VERB"
        return "NOUN" if self.phrase(i) and not self._pronoun(i) else "VERB"

    def _pronoun(self, i: int) -> bool:
        """Whether the word before stands for a noun: "one stands", "both wear"."""
        word, tag = self.before(i)
        return tag == "NUM" or word in ("both", "all", "some", "another", "each", "this", "that")

    def _after_be(self, i: int) -> bool:
        word, tag = self.before(i)
        return tag == "AUX" and word not in word_set("modals")

    def _gerund(self, i: int, other: str) -> str:
        if self.phrase(i):
            # "one riding a wave": a pronoun is the subject and no noun follows
            subject = self._pronoun(i) and not self.can(i + 1, "NOUN", "PROPN")
            if self.nominal(i + 1) and not subject:
                return "NOUN" if other == "NOUN" else "ADJ"
            if self._pronoun(i) and other != "NOUN":
                return "VERB"
            return "NOUN" if other == "NOUN" or self.before(i)[1] != "ADJ" else "VERB"
        if other == "NOUN":
            return "VERB" if self._after_be(i) or self.can(i + 1, "DET") else "NOUN"
        return "VERB"

    def _past(self, i: int, other: str) -> str:
        if self.phrase(i) and not (self._pronoun(i) and not self.nominal(i + 1)):
            if self.nominal(i + 1):
                return "ADJ"
            return other or "VERB"
        # "grilled chicken" at the start of a phrase, against "a car parked here".
        start = self.before(i)[1] in ("START", "ADP", "CCONJ", "PUNCT")
        if start and self.can(i + 1, "NOUN") and not self.can(i + 1, "VERB"):
            return "ADJ" if self.low[i].endswith("ed") or other == "ADJ" else "VERB"
        if other == "NOUN":
            return "VERB" if self.before(i)[1] in (*NOUNS, "PRON", "AUX") else "NOUN"
        return "VERB"

    def _finite(self, i: int) -> bool:
        """Whether a form such as "waves" or "wave" is a verb here."""
        word, tag = self.before(i)
        if tag == "PART" and word == "to":
            return True
        if tag == "AUX":
            return word in word_set("modals")
        if tag == "PRON":
            subject = word in word_set("subjects") or _third_person(self.low[i])
            return subject and word not in word_set("possessives")
        if tag == "CCONJ":
            return self._parallel(i)
        if tag not in NOUNS or not self._goes_on(i):
            return False
        if _third_person(self.low[i]):
            # "waves" needs a singular subject, which may be any noun before it.
            before = zip(self.low[:i], self.tags, strict=True)
            nouns = [word for word, kind in before if kind in NOUNS]
            return not all(map(is_plural, nouns))
        return is_plural(word) or "CCONJ" in self.tags

    def _goes_on(self, i: int) -> bool:
        """Whether an object, a location or the end follows, and no verb."""
        if self.can(i + 1, "VERB", "AUX") and not self.can(i + 1, "NOUN"):
            return False
        ends = i + 1 == len(self.low) or self.can(i + 1, "PUNCT")
        noun_first = self.options[i][0] == "NOUN" and self.can(i + 1, "ADP", "CCONJ")
        if not ends and not noun_first:
            if self.can(i + 1, "DET", "PRON", "ADP", "ADV", "PART", "NUM", "SCONJ"):
                return True
            if not self.nominal(i + 1):
                return False
        # Here the word may be a noun as well: a clause has only one finite verb.
        return not self._verb_behind() and not self._verb_ahead(i)

    def _verb_ahead(self, i: int) -> bool:
        """Whether a finite verb follows in the clause."""
        for word, kinds in zip(self.low[i + 1 :], self.options[i + 1 :], strict=True):
            if kinds[0] in BOUNDARIES or word == "to":
                return False
            if set(kinds) <= {"VERB", "AUX"} and not word.endswith(("ing", "ed")):
                return True
        return False

    def _verb_behind(self) -> bool:
        """Whether a finite verb precedes in the clause."""
        behind = zip(self.low[: len(self.tags)], self.tags, strict=True)
        for word, tag in reversed(list(behind)):
            if tag in BOUNDARIES and word not in word_set("possessives"):
                return False
            if tag in ("VERB", "AUX") and not word.endswith(("ing", "ed")):
                return True
        return False

    def _parallel(self, i: int) -> bool:
        """Whether the verbs before "and" have the form of word i."""
        # "runs and jumps", "run and jump".
        ending = _third_person(self.low[i])
        for word, tag in zip(self.low, self.tags, strict=False):
            finite = tag == "VERB" and not word.endswith(("ing", "ed"))
            if finite and _third_person(word) == ending:
                return True
        return False


def _third_person(verb: str) -> bool:
    return verb.endswith("s") and not verb.endswith("ss")


def _that(context: _Context, i: int) -> str:
    if context.before(i)[1] in NOUNS:
        return "PRON"
    return "DET" if context.nominal(i + 1) else "SCONJ"


def _to(context: _Context, i: int) -> str:
    if not context.can(i + 1, "VERB", "AUX") or context.word(i - 1) == "next":
        return "ADP"
    # "to a park" or "to park a car": of a usual noun, only an object makes a verb.
    noun_first = context.options[i + 1][0] == "NOUN"
    return "ADP" if noun_first and not context.can(i + 2, "DET") else "PART"


def _as(context: _Context, i: int) -> str:
    if context.word(i - 1) in ("such", "dressed", "used", "well", "same"):
        return "ADP"
    # A clause follows if there is a finite verb, else a noun phrase.
    for word, kinds in zip(context.low[i + 1 :], context.options[i + 1 :], strict=True):
        if kinds == ("AUX",) or ("VERB" in kinds and not word.endswith("ing")):
            return "SCONJ"
    return "ADP"


def _there(context: _Context, i: int) -> str:
    beside_be = context.can(i + 1, "AUX") or context.word(i - 1) in ("is", "are")
    return "PRON" if beside_be or context.word(i + 1) == "'s" else "ADV"


def _side(context: _Context, i: int) -> str:
    """Left and right: an adjective, a noun after an article, or an adverb."""
    if context.nominal(i + 1):
        return "ADJ"
    return "NOUN" if context.phrase(i) or context.before(i)[1] == "ADP" else "ADV"


def _have(context: _Context, i: int) -> str:
    # A participle makes "has" an auxiliary: "has placed", but "has a vase".
    j = i + 2 if context.can(i + 1, "ADV") else i + 1  # "has just left"
    word = context.word(j)
    participle = word.endswith(("ed", "en")) or word in word_set("participles")
    past = participle and context.can(j, "VERB", "AUX")
    return "AUX" if past or word == "been" else "VERB"


WORDS: Mapping[str, Callable[[_Context, int], str]] = {
    "that": _that,
    "to": _to,
    "as": _as,
    "there": _there,
    **dict.fromkeys(("left", "right"), _side),
    "next": lambda context, i: "ADV" if context.word(i + 1) == "to" else "ADJ",
    # "is" after a pronoun, else possessive
    "'s": lambda context, i: "AUX" if context.before(i)[1] == "PRON" else "PART",
    **dict.fromkeys(("has", "have", "had", "having"), _have),
}
