"""Hard-negative captions: a true caption rewritten by rules so that it becomes false.

In: true captions and rules. Out: false captions. Never: a caption that is known to be true.
"""

import math
import random
from collections.abc import Collection, Iterable, Iterator

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.canonical import canonical_parts
from vlmtune.language.caption_edits import Rule
from vlmtune.language.tagger import LexiconTagger, Tagger, tagged_sentence
from vlmtune.language.vocabulary import Vocabulary

MOST = 50_000  # captions to learn words from; more take minutes and do not change frequencies


class Rewriter(Configured):
    """Rewrites captions by rules.

    The rules take turns in random order, so all kinds of change that apply are equally frequent.
    The result depends on seed, key and caption alone.

    Args:
        rules: The rules.
        tagger: Tags parts of speech; None uses the `LexiconTagger`.
        seed: Seed of every random choice.

    Example:
        >>> from vlmtune.language.caption_edits import SwapAdjectives, SwapNouns
        >>> rewriter = Rewriter([SwapNouns(), SwapAdjectives()])
        >>> sorted(rewriter.negatives("An old dog chases a black cat.", count=2))
        ['A black dog chases an old cat.', 'An old cat chases a black dog.']
    """

    def __init__(self, rules: list[Rule], tagger: Tagger | None = None, seed: int = 0) -> None:
        if not rules:
            raise UserError("expected at least one rule to rewrite captions, got none: name one")
        self.rules = list(rules)
        self.seed = seed
        self.tagger: Tagger = LexiconTagger() if tagger is None else tagger
        self.vocabulary: Vocabulary | None = None

    @property
    def needs_words(self) -> bool:
        """Whether a rule needs words of a corpus and `learn` has not been called."""
        return self.vocabulary is None and any(rule.needs_words for rule in self.rules)

    def learn(self, captions: Iterable[str]) -> None:
        """Counts the words of captions, as replacements; of many captions, evenly spaced ones."""
        texts = list(captions)
        # Evenly spaced, as a corpus may be sorted by topic.
        step = max(1, math.ceil(len(texts) / MOST))
        sample = texts[::step]
        self.vocabulary = Vocabulary.learn(sample, self.tagger)

    def negatives(
        self, caption: str, avoid: Collection[str] = (), count: int = 1, key: str = ""
    ) -> tuple[str, ...]:
        """Rewrites a true caption in up to `count` ways; another key gives other captions.

        None repeats the caption, another true one in `avoid`, or another rewritten one, be it in
        other case or spacing, or with its parts in another order ("one black and one white", "one
        white and one black").
        """
        # By their parts, so that "a and b" counts as "b and a".
        taken = {canonical_parts(caption), *map(canonical_parts, avoid)}
        negatives: list[str] = []
        for text in self._rewritten(caption, key):
            if len(negatives) >= count:
                break
            parts = canonical_parts(text)
            if parts not in taken:
                taken.add(parts)
                negatives.append(text)
        return tuple(negatives)

    def _rewritten(self, caption: str, key: str) -> Iterator[str]:
        sentence = tagged_sentence(caption, self.tagger)
        # Seeded by text, so that the caption alone decides, whatever was rewritten before.
        rng = random.Random(f"{self.seed}\n{key}\n{caption}")
        turns = []
        for rule in self.rules:
            generator = random.Random(rng.random())
            turns.append(rule.rewrites(sentence, generator, self.vocabulary))
        rng.shuffle(turns)
        # One edit of each rule in turn, until all rules are at their end.
        while turns:
            for turn in list(turns):
                edits = next(turn, None)
                if edits is None:
                    turns.remove(turn)
                else:
                    yield sentence.edited(edits)
