"""The rules of the `LexiconTagger`: tags by word lists, endings and neighbouring words.

In: the words of a sentence. Out: one tag a word. Never: a model or a download.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from vlmtune.language.lexicon import groups, is_plural, tags, word_set
from vlmtune.language.words import ends_sentence

NUMBER = re.compile(r"\d[\d.,:/]*(?:st|nd|rd|th|s)?")
ADJECTIVE = re.compile(
    r".{3,}(?:ous|less|able|ible|[^f]ful|ive|ern|[^dfr]ish|ical|iest|ese)|.{5,}(?:ic|al|ary)"
)
COMPOUND = re.compile(
    r".+-(?:\w+(?:ed|en|ing|y)|shaped|sized|size|style|old|free|like|top|worn|made|long|wide|high)"
    r"|(?:multi|semi|well|over|under|non|extra|ultra|pre)-\w+"
)
LONGEST = 8  # adjectives in a row
NOUNS = ("NOUN", "PROPN")  # common and proper
BOUNDARIES = ("PUNCT", "SCONJ", "CCONJ", "PRON")  # a clause may end or begin here
PRONOUNS = ("both", "all", "some", "another", "each", "this", "that")  # or determiners


@lru_cache(maxsize=65536)
def tagged(words: tuple[str, ...]) -> tuple[str, ...]:
    """Universal tags of the words of one sentence."""
    low = [word.lower().replace("’", "'") for word in words]
    options = [_options(word, low[i], i) for i, word in enumerate(words)]
    context = _Context(low, options)
    chosen = context.tags
    # From left to right: a choice sees the tags before it and the options after it.
    for i in range(len(low)):
        chosen.append(context.choose(i))
    # The adjective of a name is part of it: "New York".
    for i in range(len(low) - 2, 0, -1):
        before_name = chosen[i] == "ADJ" and chosen[i + 1] == "PROPN"
        has_capital = words[i][:1].isupper()
        if before_name and has_capital and not ends_sentence(words, i - 1):
            chosen[i] = "PROPN"
    return tuple(chosen)


def _options(word: str, low: str, position: int) -> tuple[str, ...]:
    """The tags a word can have, the usual one first."""
    # Signs alone; & stands for "and", and ' may be a possessive.
    has_letter = any(letter.isalnum() for letter in low)
    if not has_letter and low not in ("&", "'"):
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
        return ("ADJ",) if _is_compound_adjective(low) else ("NOUN",)
    if low.endswith("ly") and len(low) > 4:
        return ("ADV",)
    if low.endswith(("ing", "ed")) and len(low) > 4:
        return ("VERB",)
    if ADJECTIVE.fullmatch(low) or _is_comparative(low):
        # "a coastal town", but "a cathedral"; "a warmer coat", but "a father"
        is_noun_too = low.endswith(("al", "ary", "ern", "ic", "er"))
        return ("ADJ", "NOUN") if is_noun_too else ("ADJ",)
    return ("NOUN",)


def _is_compound_adjective(low: str) -> bool:
    if COMPOUND.fullmatch(low):
        return True
    # An unknown part is taken for a noun.
    parts = [part for part in low.split("-") if part]
    if not parts:
        return False
    first = tags().get(parts[0], ("NOUN",))
    last = tags().get(parts[-1], ("NOUN",))
    return first[0] == "NUM" or last[0] == "ADJ"


def _is_comparative(low: str) -> bool:
    for ending in ("er", "est"):
        stem = low.removesuffix(ending)
        if stem == low:
            continue
        # "smaller", "wider"
        bases = [stem, f"{stem}e"]
        shorter = stem[:-1]
        if stem.endswith("i"):
            bases.append(f"{shorter}y")  # "happier"
        if stem[-1:] == shorter[-1:]:
            bases.append(shorter)  # "bigger", unlike "father" and "freezer"
        for base in bases:
            known = tags().get(base, ())
            if len(base) > 2 and "ADJ" in known:
                return True
    return False


class _Context:
    """The tags before the next word, and the options after it."""

    def __init__(self, low: list[str], options: list[tuple[str, ...]]) -> None:
        self.low = low
        self.options = options
        self.tags: list[str] = []

    def word(self, i: int) -> str:
        return self.low[i] if 0 <= i < len(self.low) else ""

    def can(self, i: int, *kinds: str) -> bool:
        """Whether word i, not tagged yet, can have one of the tags `kinds`."""
        if not 0 <= i < len(self.low):
            return False
        return any(kind in self.options[i] for kind in kinds)

    def ends(self, i: int, *kinds: str) -> bool:
        """Whether the sentence ends before word i, or word i can have one of the tags `kinds`."""
        return i == len(self.low) or self.can(i, *kinds)

    def before(self, i: int, skip: Sequence[str] = ("ADV",)) -> tuple[str, str]:
        """The word before word i and its tag, skipping adverbs."""
        for j in range(i - 1, -1, -1):
            if self.tags[j] not in skip:
                return self.low[j], self.tags[j]
        return "", "START"

    def tag_before(self, i: int) -> str:
        """The tag of the word before word i, skipping adverbs."""
        _, tag = self.before(i)
        return tag

    def choose(self, i: int) -> str:
        if rule := WORDS.get(self.low[i]):
            return rule(self, i)
        options = self.options[i]
        if options == ("ADP",):
            return self._adposition(i)
        if "VERB" in options:
            return self._verb(i)
        return self._adjective(i)

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
        possessive = tag == "PART" and word in ("'s", "'")
        if tag in ("DET", "NUM", "ADJ") or possessive:
            return True
        return word in word_set("possessives")

    def _adposition(self, i: int) -> str:
        if self.tag_before(i) == "DET" and self.nominal(i + 1):
            return "ADJ"  # "the opposite side", "an outside view"
        clause_ends = self.ends(i + 1, "PUNCT", "CCONJ", "SCONJ")
        if clause_ends and self.low[i] in word_set("clause_ends"):
            return "ADV"
        return "ADP"

    def _adjective(self, i: int) -> str:
        """An adjective that may be a noun, such as "orange" or "metal"."""
        options = self.options[i]
        group = groups().get(self.low[i])
        if "ADJ" not in options:
            return options[0]
        if group != "material" and "NOUN" not in options:
            return "ADJ"
        if self.nominal(i + 1) or self._is_listed(i):
            return "ADJ"
        if self.phrase(i):
            return "NOUN"  # "a metal", "an orange"
        if group == "colour":
            return "ADJ"
        if group == "material":
            return "NOUN"
        return options[0]

    def _is_listed(self, i: int) -> bool:
        """Whether an unknown word is an adjective of several: "a coastal, rocky town"."""
        if self.low[i] in tags():
            return False
        if i > 0 and self.tags[i - 1] == "ADV":
            return True
        return self.can(i + 1, "CCONJ", "PUNCT") and self.nominal(i + 2)

    def _verb(self, i: int) -> str:
        """A verb that may be a noun or an adjective."""
        word = self.low[i]
        # "wave" may be a noun, "clean" an adjective.
        others = [kind for kind in ("NOUN", "ADJ") if kind in self.options[i]]
        other = others[0] if others else ""
        if word.endswith("ing"):
            return self._gerund(i, other)
        is_irregular = word in word_set("participles") or word in word_set("irregular")
        if word.endswith("ed") or is_irregular:
            return self._past(i, other)
        if other == "NOUN":
            return "VERB" if self._finite(i) else "NOUN"
        if other == "ADJ":
            attribute = self.phrase(i) or self.nominal(i + 1)
            return "ADJ" if attribute or self._after_be(i) else "VERB"
        if self.phrase(i) and not self._pronoun(i):
            return "NOUN"
        return "VERB"

    def _pronoun(self, i: int) -> bool:
        """Whether the word before stands for a noun: "one stands", "both wear"."""
        word, tag = self.before(i)
        return tag == "NUM" or word in PRONOUNS

    def _after_be(self, i: int) -> bool:
        word, tag = self.before(i)
        return tag == "AUX" and word not in word_set("modals")

    def _gerund(self, i: int, other: str) -> str:
        if self.phrase(i):
            return self._gerund_in_phrase(i, other)
        if other == "NOUN":
            # "is surfing", "surfing a wave"
            verb = self._after_be(i) or self.can(i + 1, "DET")
            return "VERB" if verb else "NOUN"
        return "VERB"

    def _gerund_in_phrase(self, i: int, other: str) -> str:
        noun = other == "NOUN"
        pronoun = self._pronoun(i)
        # "one riding a wave": a pronoun is the subject and no noun follows
        subject = pronoun and not self.can(i + 1, "NOUN", "PROPN")
        if self.nominal(i + 1) and not subject:
            return "NOUN" if noun else "ADJ"
        if noun:
            return "NOUN"
        if pronoun or self.tag_before(i) == "ADJ":
            return "VERB"
        return "NOUN"

    def _past(self, i: int, other: str) -> str:
        attribute = self.nominal(i + 1)
        if self.phrase(i) and (attribute or not self._pronoun(i)):
            return "ADJ" if attribute else other or "VERB"
        # "grilled chicken" at the start of a phrase, against "a car parked here".
        tag = self.tag_before(i)
        start = tag in ("START", "ADP", "CCONJ", "PUNCT")
        noun_follows = self.can(i + 1, "NOUN") and not self.can(i + 1, "VERB")
        if start and noun_follows:
            adjective = self.low[i].endswith("ed") or other == "ADJ"
            return "ADJ" if adjective else "VERB"
        if other == "NOUN" and tag not in (*NOUNS, "PRON", "AUX"):
            return "NOUN"
        return "VERB"

    def _finite(self, i: int) -> bool:
        """Whether a form such as "waves" or "wave" is a verb here."""
        word, tag = self.before(i)
        if tag == "PART" and word == "to":
            return True
        if tag == "AUX":
            return word in word_set("modals")
        if tag == "PRON":
            # "they wave", but "it waves" by its ending; "her wave" is a noun.
            subject = word in word_set("subjects") or _third_person(self.low[i])
            return subject and word not in word_set("possessives")
        if tag == "CCONJ":
            return self._parallel(i)
        if tag not in NOUNS or not self._goes_on(i):
            return False
        if _third_person(self.low[i]):
            return self._singular_noun_before(i)
        return is_plural(word) or "CCONJ" in self.tags

    def _singular_noun_before(self, i: int) -> bool:
        """Whether "waves" has a possible subject: any noun before it that is singular."""
        before = zip(self.low[:i], self.tags, strict=True)
        nouns = [word for word, tag in before if tag in NOUNS]
        return not all(map(is_plural, nouns))

    def _goes_on(self, i: int) -> bool:
        """Whether an object, a location or the end follows, and no verb."""
        after = i + 1
        if self.can(after, "VERB", "AUX") and not self.can(after, "NOUN"):
            return False
        # Of a usual noun, "park in" shows nothing: a noun may be followed so, too.
        is_usual_noun = self.options[i][0] == "NOUN"
        noun_first = is_usual_noun and self.can(after, "ADP", "CCONJ")
        if not noun_first and not self.ends(after, "PUNCT"):
            if self.can(after, "DET", "PRON", "ADP", "ADV", "PART", "NUM", "SCONJ"):
                return True
            if not self.nominal(after):
                return False
        # Here the word may be a noun as well: a clause has only one finite verb.
        return not self._verb_behind() and not self._verb_ahead(i)

    def _verb_ahead(self, i: int) -> bool:
        """Whether a finite verb follows in the clause."""
        for word, kinds in self.ahead(i):
            if kinds[0] in BOUNDARIES or word == "to":
                return False
            if set(kinds) <= {"VERB", "AUX"} and not word.endswith(("ing", "ed")):
                return True
        return False

    def ahead(self, i: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The words after word i, and the tags each can have."""
        return zip(self.low[i + 1 :], self.options[i + 1 :], strict=True)

    def _verb_behind(self) -> bool:
        """Whether a finite verb precedes in the clause."""
        words = self.low[: len(self.tags)]
        behind = list(zip(words, self.tags, strict=True))
        for word, tag in reversed(behind):
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
    if context.tag_before(i) in NOUNS:
        return "PRON"
    return "DET" if context.nominal(i + 1) else "SCONJ"


def _to(context: _Context, i: int) -> str:
    if context.word(i - 1) == "next" or not context.can(i + 1, "VERB", "AUX"):
        return "ADP"
    # "to a park" or "to park a car": of a usual noun, only an object makes a verb.
    usual = context.options[i + 1][0]
    if usual == "NOUN" and not context.can(i + 2, "DET"):
        return "ADP"
    return "PART"


def _as(context: _Context, i: int) -> str:
    if context.word(i - 1) in ("such", "dressed", "used", "well", "same"):
        return "ADP"
    # A clause follows if there is a finite verb, else a noun phrase.
    for word, kinds in context.ahead(i):
        if kinds == ("AUX",) or ("VERB" in kinds and not word.endswith("ing")):
            return "SCONJ"
    return "ADP"


def _there(context: _Context, i: int) -> str:
    if context.can(i + 1, "AUX") or context.word(i + 1) == "'s":
        return "PRON"  # "there are", "there's"
    return "PRON" if context.word(i - 1) in ("is", "are") else "ADV"


def _side(context: _Context, i: int) -> str:
    """Left and right: an adjective, a noun after an article, or an adverb."""
    if context.nominal(i + 1):
        return "ADJ"
    if context.phrase(i) or context.tag_before(i) == "ADP":
        return "NOUN"
    return "ADV"


def _have(context: _Context, i: int) -> str:
    # A participle makes "has" an auxiliary: "has placed", but "has a vase".
    j = i + 1
    if context.can(j, "ADV"):
        j = i + 2  # "has just left"
    word = context.word(j)
    participle = word.endswith(("ed", "en")) or word in word_set("participles")
    past = participle and context.can(j, "VERB", "AUX")
    return "AUX" if past or word == "been" else "VERB"


def _can(context: _Context, i: int) -> str:
    """A noun after an article or a noun, unless a verb follows: "a trash can by a door"."""
    tag = context.tag_before(i)
    after = context.word(i + 1)
    verb = context.can(i + 1, "VERB", "AUX", "ADV", "PART")
    if tag == "DET":
        return "NOUN"
    # What no auxiliary has after it: "is", "sits", "sitting", "filled".
    inflected = _third_person(after) or after in ("is", "are") or after.endswith(("ing", "ed"))
    follows_noun = tag in (*NOUNS, "ADJ")
    return "NOUN" if follows_noun and (inflected or not verb) else "AUX"


def _next(context: _Context, i: int) -> str:
    return "ADV" if context.word(i + 1) == "to" else "ADJ"


def _apostrophe_s(context: _Context, i: int) -> str:
    # "is" after a pronoun, else possessive
    return "AUX" if context.tag_before(i) == "PRON" else "PART"


WORDS: Mapping[str, Callable[[_Context, int], str]] = {
    "that": _that,
    "to": _to,
    "as": _as,
    "there": _there,
    "left": _side,
    "right": _side,
    "next": _next,
    "can": _can,
    "'s": _apostrophe_s,
    **dict.fromkeys(("has", "have", "had", "having"), _have),
}
