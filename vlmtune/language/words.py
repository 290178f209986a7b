"""A caption as words and back, with the gaps between the words preserved.

In: a caption, or its words and gaps. Out: its words and gaps, or the caption.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

WORD = re.compile(
    r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+(?:[-.,:/]\w+)*|[^\w\s]", re.IGNORECASE
)
# Words whose first letter and first sound differ: vowel letter, consonant sound; and the reverse.
VOWELS = tuple("aeiou")
SPOKEN_CONSONANT = re.compile(
    r"uni(?!n|m|d)|us[ae]|usual|usb|us\b|util|uten|uto|uri|uran|ugan|uku|u[-.]|uk\b|ufo|eu|ewe|"
    r"one\b|once"
)
SPOKEN_VOWEL = re.compile(
    r"hour|honest|honou?r|heir|8|1[18](?:th)?\b|[fhlmnrsx]-|(?:suv|rv|lcd|hdtv|xbox|mri|nba|nfl|fbi)\b"
)
# Capitals without a vowel are read one by one: "an LCD".
LETTERS = re.compile(r"[FHLMNRSX][BCDFGHJ-NP-TV-XZ]+\b")
ABBREVIATIONS = ("st", "mr", "mrs", "ms", "dr", "mt", "no", "vs")


class Piece(NamedTuple):
    """A word of a rewritten caption, the gap before it, and its original position, if any."""

    gap: str
    word: str
    origin: int | None


Edits = Mapping[tuple[int, int], Sequence[str]]
"""New words for the words from position `start` up to, not including, `stop`."""


def words(caption: str) -> list[str]:
    """The words and punctuation marks of a caption, much as the Penn Treebank splits them.

    Example:
        >>> words("He doesn't ride, on his friend's red-brown horse.")[:8]
        ['He', 'does', "n't", 'ride', ',', 'on', 'his', 'friend']
    """
    return WORD.findall(caption)


def article(word: str) -> str:
    """The indefinite article for a word, by its first sound.

    Example:
        >>> [article(word) for word in ("apple", "hour", "unicorn", "umbrella", "dog")]
        ['an', 'an', 'a', 'an', 'a']
    """
    low = word.lower()
    if SPOKEN_CONSONANT.match(low):
        return "a"
    if SPOKEN_VOWEL.match(low) or LETTERS.match(word) or low.startswith(VOWELS):
        return "an"
    return "a"


@dataclass(frozen=True)
class Sentence:
    """A caption that can be edited.

    Attributes:
        words: Its words and punctuation marks.
        gaps: The text before each word, and after the last.
        tags: The part of speech of each word.
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]
    tags: tuple[str, ...]

    @staticmethod
    def split(caption: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The words of a caption, and the gaps around them.

        Example:
            >>> Sentence.split("Two dogs, one cat.")[1]
            ('', ' ', '', ' ', ' ', '', '')
        """
        words = []
        gaps = []
        end = 0
        for match in WORD.finditer(caption):
            gaps.append(caption[end : match.start()])
            words.append(match.group())
            end = match.end()
        gaps.append(caption[end:])
        return tuple(words), tuple(gaps)

    def word(self, i: int) -> str:
        """Word i, or "" outside the caption."""
        return self.words[i] if 0 <= i < len(self.words) else ""

    def tag(self, i: int) -> str:
        """The tag of word i, or "" outside the caption."""
        return self.tags[i] if 0 <= i < len(self.tags) else ""

    def edited(self, edits: Edits) -> str:
        """The caption with other words.

        A capital at the start of a sentence stays, and "a" and "an" agree with new words after
        them.

        Example:
            >>> caption = "A dog chases an old cat."
            >>> sentence = Sentence(*Sentence.split(caption), tags=("X",) * 7)
            >>> sentence.edited({(1, 2): ["cat"], (4, 5): [], (5, 6): ["dog"]})
            'A cat chases a dog.'
        """
        pieces = self._pieces(edits)
        capitals = self._capitals
        # The first word of a sentence may have moved, and a new word may be a copy of it.
        for i, piece in enumerate(pieces):
            if piece.origin is None or piece.origin in capitals:
                pieces[i] = piece._replace(word=self.inner(piece.word))
        pieces = _agreed(pieces)
        for i, piece in enumerate(pieces):
            # Where the sentence of this word began in the caption.
            start = 0
            if i:
                before = pieces[i - 1]
                if before.origin is None or not ends_sentence(self.words, before.origin):
                    continue
                start = before.origin + 1
            if start in capitals:
                capitalised = piece.word[:1].upper() + piece.word[1:]
                pieces[i] = piece._replace(word=capitalised)
        text = "".join(piece.gap + piece.word for piece in pieces)
        text += self.gaps[-1]
        # A caption in capitals stays one.
        return text.upper() if "".join(self.words).isupper() else text

    def _pieces(self, edits: Edits) -> list[Piece]:
        pieces: list[Piece] = []
        gap: str | None = None  # the gap before removed words
        at = 0
        end = len(self.words)
        # An empty edit at the end copies the words after the last edit.
        edits = {(end, end): (), **edits}
        for (start, stop), new in sorted(edits.items()):
            for i in range(at, start):
                before = self.gaps[i] if gap is None else gap
                pieces.append(Piece(before, self.words[i], i))
                gap = None
            for word in new:
                before = self.gaps[start] if gap is None else gap
                if word == ",":
                    before = ""
                pieces.append(Piece(before, word, None))
                gap = " "
            if stop > start:
                gap = None if new else gap or self.gaps[start]
            at = stop
        return pieces

    def inner(self, word: str) -> str:
        """A word of the caption as it is written within a sentence."""
        if word == "I":
            return word
        for start in self._capitals:
            if word == self.words[start] and self.tags[start] != "PROPN":
                return word[:1].lower() + word[1:]
        return word

    @cached_property
    def _capitals(self) -> frozenset[int]:
        """The words that have a capital because they begin a sentence."""
        starts = set()
        for i, word in enumerate(self.words):
            is_first = i == 0 or ends_sentence(self.words, i - 1)
            if is_first and _capital(word):
                starts.add(i)
        return frozenset(starts)


def ends_sentence(words: Sequence[str], position: int) -> bool:
    """Whether a word is a stop at the end of a sentence, unlike that of "St." and "U.S."."""
    if words[position] in ("!", "?"):
        return True
    if words[position] != "." or position == 0:
        return False
    before = words[position - 1]
    return len(before) > 1 and "." not in before and before.lower() not in ABBREVIATIONS


def _capital(word: str) -> bool:
    return word[:1].isupper() and (len(word) == 1 or not word.isupper())


def _agreed(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces, with articles that agree with new words after them."""
    agreed = list(pieces)
    for i, (piece, after) in enumerate(pairwise(pieces)):
        if piece.word.lower() not in ("a", "an"):
            continue
        # "a historic" or "an historic": what the caption had side by side stays.
        if piece.origin is not None and after.origin == piece.origin + 1:
            continue
        new = article(after.word)
        if piece.word[0].isupper():
            new = new.capitalize()
        agreed[i] = piece._replace(word=new)
    return agreed
