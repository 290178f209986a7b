"""The words of a corpus by kind, with how often each occurs: what a word may be replaced by."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

from vlmtune.errors import UserError
from vlmtune.language.lexicon import groups, is_plural, word_set
from vlmtune.language.tagger import Tagger
from vlmtune.language.words import words

VERSION = 1
KINDS = ("NOUN", "ADJ", "VERB", "ADP", "NUM")


class Vocabulary:
    """Words of one kind have one part of speech and one form, and fit into each other's place.

    Args:
        counts: For each kind how often each word occurs.

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
        self.counts = {kind: dict(sorted(of.items())) for kind, of in sorted(counts.items())}
        self._sums: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            kind: (tuple(of), tuple(accumulate(of.values()))) for kind, of in self.counts.items()
        }

    @classmethod
    def learn(cls, captions: Iterable[str], tagger: Tagger) -> "Vocabulary":
        """Counts the words of captions."""
        counts: dict[str, Counter[str]] = {}
        for caption in captions:
            split = words(caption)
            for word, tag in zip(split, tagger.tag(split), strict=True):
                if tag in KINDS and word.isascii() and len(word) > 1:
                    counts.setdefault(kind(word, tag), Counter())[word.lower()] += 1
        return cls(counts)

    def like(self, word: str, tag: str) -> tuple[Sequence[str], Sequence[int]]:
        """The words of the kind of `word`, sorted, and the running sums of their counts."""
        return self._sums.get(kind(word, tag), ((), ()))

    def save(self, path: Path) -> None:
        """Writes the counts as JSON, whole or not at all.

        Raises:
            UserError: The file cannot be written.
        """
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(json.dumps({"version": VERSION, "counts": self.counts}) + "\n", "utf-8")
            part.replace(path)
        except OSError as error:
            raise UserError(
                f"expected to write {path}, got {type(error).__name__} ({error}): correct the path"
            ) from error

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Reads what `save` wrote.

        Raises:
            UserError: The file cannot be read or holds something else.
        """
        wanted = "a vocabulary as Vocabulary.save writes it"
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            counts = {
                str(name): {str(word): int(count) for word, count in of.items()}
                for name, of in content["counts"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"expected {wanted} in {path}, got {type(error).__name__} ({error}): "
                "write it again or correct the path"
            ) from error
        if any(count < 1 for of in counts.values() for count in of.values()):
            raise UserError(f"expected {wanted} in {path}, got a count below 1: write it again")
        return cls(counts)


@cache
def kind(word: str, tag: str) -> str:
    """The part of speech with what else must agree for one word to stand in another's place.

    Example:
        >>> kind("Dogs", "NOUN"), kind("red", "ADJ"), kind("riding", "VERB")
        ('NOUN plural', 'ADJ colour', 'VERB ing')
    """
    low = word.lower()
    if tag == "NOUN":
        return "NOUN plural" if is_plural(low) else "NOUN"
    if tag == "ADJ":
        return f"ADJ {groups()[low]}" if low in groups() else "ADJ"
    if tag == "VERB":
        return f"VERB {_form(low)}"
    return tag


def _form(verb: str) -> str:
    for ending in ("ing", "ed"):
        if verb.endswith(ending):
            return ending
    if verb in word_set("participles") | word_set("irregular"):
        return "ed"
    return "s" if verb.endswith("s") and not verb.endswith("ss") else "base"
