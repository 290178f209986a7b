"""Hard-negative captions: the caption rewritten by rules so that it becomes false."""

import random
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from vlmtune.config import Configured
from vlmtune.errors import UserError
from vlmtune.language.rules import Rule
from vlmtune.language.tagger import LexiconTagger, Tagger
from vlmtune.language.vocabulary import Vocabulary
from vlmtune.language.words import Sentence, said

LEARNT_FROM = 50_000  # captions; more would not change frequencies and take minutes


class Rewriter(Configured):
    """Rewrites captions by rules.

    The rules take turns, in random order, so that all kinds of changes are equally frequent where
    they apply. What comes out is a function of seed, key and caption alone.

    Args:
        rules: The rules.
        tagger: Says what is a noun; the `LexiconTagger` by default.
        vocabulary: File of words for rules that replace; without it, `learn` must be called.
        seed: Seed of every choice.

    Raises:
        UserError: There is no rule, or the vocabulary cannot be read.

    Example:
        >>> from vlmtune.language.rules import SwapAdjectives, SwapNouns
        >>> rewriter = Rewriter([SwapNouns(), SwapAdjectives()])
        >>> sorted(rewriter.negatives("An old dog chases a black cat.", count=2))
        ['A black dog chases an old cat.', 'An old cat chases a black dog.']
    """

    def __init__(
        self,
        rules: list[Rule],
        tagger: Tagger | None = None,
        vocabulary: str | None = None,
        seed: int = 0,
    ) -> None:
        if not rules:
            raise UserError("expected at least one rule to rewrite captions, got none: name one")
        self.rules, self.seed = list(rules), seed
        self.tagger: Tagger = LexiconTagger() if tagger is None else tagger
        self.vocabulary = None if vocabulary is None else Vocabulary.load(Path(vocabulary))

    @property
    def needs_words(self) -> bool:
        """Whether words of a corpus have yet to be learnt."""
        return self.vocabulary is None and any(rule.needs_words for rule in self.rules)

    def learn(self, captions: Iterable[str]) -> None:
        """Takes the words that replace others from captions, evenly chosen where there are many."""
        texts = list(captions)
        step = max(1, -(-len(texts) // LEARNT_FROM))
        self.vocabulary = Vocabulary.learn(texts[::step], self.tagger)

    def negatives(
        self, caption: str, avoid: Collection[str] = (), count: int = 1, key: str = ""
    ) -> tuple[str, ...]:
        """Rewrites a caption.

        Args:
            caption: A true caption.
            avoid: Further true captions.
            count: How many rewritten ones are wanted.
            key: Another key gives other ones.

        Returns:
            Up to `count` captions, none of which is the caption, one of `avoid` or another of them
            in other case or spacing, or with its parts in another order ("one black and one
            white", "one white and one black"); empty where no rule applies.

        Raises:
            UserError: A rule needs words and there are none, or the tagger loses words.
        """
        taken = {said(caption), *map(said, avoid)}
        found: list[str] = []
        for text in self._rewritten(caption, key):
            if len(found) >= count:
                break
            if said(text) not in taken:
                taken.add(said(text))
                found.append(text)
        return tuple(found)

    def _rewritten(self, caption: str, key: str) -> Iterator[str]:
        sentence = self._sentence(caption)
        dice = random.Random(f"{self.seed}\n{key}\n{caption}")
        turns = [
            rule.rewrites(sentence, random.Random(dice.random()), self.vocabulary)
            for rule in self.rules
        ]
        dice.shuffle(turns)
        while turns:
            for turn in list(turns):
                edits = next(turn, None)
                if edits is None:
                    turns.remove(turn)
                else:
                    yield sentence.edited(edits)

    def _sentence(self, caption: str) -> Sentence:
        split, gaps = Sentence.split(caption)
        tags = tuple(self.tagger.tag(split))
        if len(tags) != len(split):
            raise UserError(
                f"expected {len(split)} tags for {caption[:60]!r}, got {len(tags)}: "
                "correct the tagger"
            )
        return Sentence(split, gaps, tags)
