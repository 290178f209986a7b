import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import vlmtune
from tests.refusals import refused
from vlmtune.config import instantiate
from vlmtune.language import caption_edits
from vlmtune.language.canonical import canonical
from vlmtune.language.rewriting import Rewriter
from vlmtune.language.tagger import LexiconTagger, tagged_sentence
from vlmtune.language.words import Edits, Sentence

ALL = [
    caption_edits.SwapNouns(),
    caption_edits.SwapAdjectives(),
    caption_edits.ExchangeAttributes(),
    caption_edits.ReverseRelation(),
    *[caption_edits.ReplaceWord(tag) for tag in ("NOUN", "ADJ", "VERB")],
]
CAPTIONS = [
    "A small red dog chases a big black cat on green grass.",
    "Two women are holding umbrellas behind an old bus",
    "an orange cat under a wooden table and a grey mouse on it",
    "snow",
    "",
    "!!",
    "A MAN RIDES A HORSE",
]


def learned(**settings) -> Rewriter:
    rewriter = Rewriter(ALL, **settings)
    rewriter.learn(CAPTIONS)
    return rewriter


def test_no_negative_is_the_caption_a_true_one_or_another():
    rewriter = learned()
    for caption in CAPTIONS:
        everything = rewriter.negatives(caption, count=100)
        forms = [canonical(text) for text in everything]
        assert len(set(forms)) == len(forms)
        assert canonical(caption) not in forms
        avoid = [text.upper().replace(" ", "  ") for text in everything[::2]]
        rest = rewriter.negatives(caption, avoid, 100)
        assert not {canonical(text) for text in rest} & {canonical(text) for text in avoid}
        assert set(everything[1::2]) <= set(rest)


@pytest.mark.parametrize(
    ("caption", "same"),
    [
        ("Two dogs, one black and one white, play", "Two dogs, one white and one black, play"),
        ("a boy with a hat, a girl with a hat.", "a girl with a hat, a boy with a hat."),
    ],
)
def test_the_same_parts_in_another_order_are_no_negative(caption, same):
    rules = [
        caption_edits.SwapNouns(),
        caption_edits.SwapAdjectives(),
        caption_edits.ExchangeAttributes(),
    ]
    sentence = tagged_sentence(caption, LexiconTagger())
    rng = random.Random(0)
    texts = {sentence.edited(e) for rule in rules for e in rule.rewrites(sentence, rng, None)}
    assert same in texts
    everything = Rewriter(rules).negatives(caption, count=100)
    assert same not in everything
    car, true = "a red car behind an old bus and a tree", "A tree, an old car behind a red bus"
    assert Rewriter([caption_edits.SwapAdjectives()]).negatives(car)
    assert not Rewriter([caption_edits.SwapAdjectives()]).negatives(car, [true])


def test_only_seed_key_and_caption_count():
    caption = CAPTIONS[0]
    one, other = learned(), learned()
    for text in CAPTIONS:
        one.negatives(text, count=3, key="before")
    random.seed(0)
    first = one.negatives(caption, count=3, key="k")
    random.seed(9)
    assert other.negatives(caption, count=3, key="k") == first
    assert one.negatives(caption, count=2, key="k") == first[:2]
    assert len({one.negatives(caption, key=str(i)) for i in range(20)}) > 5
    assert len({learned(seed=i).negatives(caption, key="k") for i in range(20)}) > 5


def test_another_process_makes_the_same():
    code = (
        "from vlmtune.language.rewriting import Rewriter\n"
        "from vlmtune.language.caption_edits import SwapNouns, ReplaceWord\n"
        "rewriter = Rewriter([SwapNouns(), ReplaceWord('ADJ')])\n"
        f"rewriter.learn({CAPTIONS!r})\n"
        f"print(rewriter.negatives({CAPTIONS[0]!r}, count=4, key='k'))\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(vlmtune.__file__).parent.parent,
        env={"PYTHONHASHSEED": "1"},
    )
    rewriter = Rewriter([caption_edits.SwapNouns(), caption_edits.ReplaceWord("ADJ")])
    rewriter.learn(CAPTIONS)
    assert there.stdout.strip() == str(rewriter.negatives(CAPTIONS[0], count=4, key="k"))


def test_rules_take_turns():
    class Many(caption_edits.Rule):
        """Makes a thousand captions."""

        def rewrites(self, sentence: Sentence, rng, words) -> Iterator[Edits]:
            return ({(0, 1): [f"many{i}"]} for i in range(1000))

    class Two(caption_edits.Rule):
        """Makes two."""

        def rewrites(self, sentence: Sentence, rng, words) -> Iterator[Edits]:
            return ({(0, 1): [f"two{i}"]} for i in range(2))

    rewriter = Rewriter([Many(), Two()])
    assert sum(text.startswith("two") for text in rewriter.negatives("a", count=4)) == 2
    assert len(rewriter.negatives("a", count=50)) == 50
    first = Counter(rewriter.negatives("a", key=str(i))[0][:3] for i in range(400))
    assert 150 < first["two"] < 250


def test_no_negatives_where_no_rule_applies_and_no_rewriter_without_a_rule():
    assert Rewriter([caption_edits.SwapNouns()]).negatives("snow") == ()
    assert Rewriter([caption_edits.SwapNouns()]).negatives("a dog chases a cat", count=0) == ()
    with refused("at least one rule"):
        Rewriter([])


def test_its_spec_makes_it_again():
    rewriter = learned(seed=3)
    assert not rewriter.needs_words
    again = instantiate(rewriter.spec(), Rewriter)
    again.learn(CAPTIONS)
    assert again.negatives(CAPTIONS[1], count=9) == rewriter.negatives(CAPTIONS[1], count=9)


def test_many_captions_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr("vlmtune.language.rewriting.MOST", 3)
    rewriter = Rewriter([caption_edits.ReplaceWord()])
    assert rewriter.needs_words
    rewriter.learn(f"a {noun}" for noun in ("ant", "bee", "cow", "dog", "emu", "fox", "gnu"))
    assert rewriter.vocabulary is not None
    assert set(rewriter.vocabulary.counts["NOUN"]) == {"ant", "dog", "gnu"}
