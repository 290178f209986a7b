"""The words of a corpus by kind, with their frequencies: the replacements for a word.

In: tagged captions. Out: words of the same kind, drawn as often as the corpus has them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate

from vlmtune.language.lexicon import groups, is_plural, word_set
from vlmtune.language.tagger import Tagger
from vlmtune.language.words import words

KINDS = ("NOUN", "ADJ", "VERB", "ADP", "NUM")  # that a rule can replace
OBJECT_BEGINS = frozenset({"DET", "PRON", "NUM", "ADJ", "NOUN", "PROPN"})  # right after its verb
Draws = tuple[Sequence[str], Sequence[int]]  # words, and the running sums of their counts


class Vocabulary:
    """Counts of words by kind; words of one kind have one part of speech and form.

    Example:
        >>> from vlmtune.language.tagger import LexiconTagger
        >>> captions = ["a red cube", "a green cube", "two cubes"]
        >>> vocabulary = Vocabulary.learn(captions, LexiconTagger())
        >>> vocabulary.like("blue", "ADJ")[0]
        ('green', 'red')
        >>> vocabulary.like("dog", "NOUN")
        (('cube',), (2,))
    """

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self._sums: dict[str, Draws] = {}
        # Sorted, so that a draw does not depend on the order of the captions.
        for name in sorted(counts):
            count_of = dict(sorted(counts[name].items()))
            sums = accumulate(count_of.values())
            self.counts[name] = count_of
            self._sums[name] = (tuple(count_of), tuple(sums))

    @classmethod
    def learn(cls, captions: Iterable[str], tagger: Tagger) -> "Vocabulary":
        """Counts the words of captions."""
        counts: dict[str, Counter[str]] = {}
        for caption in captions:
            # Split as sentences are rewritten, so that every counted word can be replaced.
            split = words(caption)
            tags = tagger.tag(split)
            tags_after = (*tags, "")[1:]
            for word, tag, after in zip(split, tags, tags_after, strict=True):
                # Symbols, digits and words of other scripts replace no word.
                is_word = word.isascii() and len(word) > 1 and not word[0].isdigit()
                if tag in KINDS and is_word:
                    count_of = counts.setdefault(kind(word, tag, after), Counter())
                    count_of[word.lower()] += 1
        return cls(counts)

    def like(self, word: str, tag: str, after: str = "") -> Draws:
        """The words of the kind of `word`, sorted, and the running sums of their counts.

        `after` is the tag of the word that follows.
        """
        return self._sums.get(kind(word, tag, after), ((), ()))


@cache
def kind(word: str, tag: str, after: str = "") -> str:
    """The part of speech and the form that a word and its replacement must have.

    A verb before an object is only replaced by a verb that had an object in the corpus: "throws a
    ball" never becomes "talks a ball".

    Example:
        >>> kind("Dogs", "NOUN"), kind("red", "ADJ"), kind("riding", "VERB", "DET")
        ('NOUN plural', 'ADJ colour', 'VERB ing object')
    """
    low = word.lower()
    if tag == "NOUN" and is_plural(low):
        return "NOUN plural"
    if tag == "ADJ" and low in groups():
        return f"ADJ {groups()[low]}"
    if tag == "VERB":
        name = f"VERB {_form(low)}"
        return f"{name} object" if after in OBJECT_BEGINS else name
    if low in ("one", "1"):
        return "NUM one"  # a singular follows it alone
    return tag


def _form(verb: str) -> str:
    for ending in ("ing", "ed"):
        if verb.endswith(ending):
            return ending
    if verb in word_set("participles") | word_set("irregular"):
        return "ed"
    if verb.endswith("s") and not verb.endswith("ss"):
        return "s"
    return "base"
