import random

import pytest

from vlmtune.language.caption_edits import (
    ExchangeAttributes,
    ReplaceWord,
    ReverseRelation,
    Rule,
    SwapAdjectives,
    SwapNouns,
)
from vlmtune.language.tagger import LexiconTagger
from vlmtune.language.vocabulary import Vocabulary
from vlmtune.language.words import Sentence

CORPUS = [
    "a red dog runs under a tree",
    "a green cat sits on a table",
    "a blue horse is running on grass",
    "two women hold umbrellas",
    "a hundred boats",
    "three wooden boats floating near an island",
    "a person in a group of people",
    "several happy children",
]


def rewritten(rule: Rule, caption: str, seed: int = 0) -> set[str]:
    split, gaps = Sentence.split(caption)
    sentence = Sentence(split, gaps, tuple(LexiconTagger().tag(split)))
    words = Vocabulary.learn(CORPUS, LexiconTagger())
    return {sentence.edited(e) for e in rule.rewrites(sentence, random.Random(seed), words)}


NOUNS, ADJECTIVES = SwapNouns(), SwapAdjectives()
ATTRIBUTES, RELATION = ExchangeAttributes(), ReverseRelation()
MANY = "a dog chases a cat under a tree"
RULES = [  # a rule, a caption and all that it becomes
    (NOUNS, "A dog chases a cat.", "A cat chases a dog."),
    (NOUNS, "a fire truck hits a tree", "a tree hits a fire truck"),
    (NOUNS, "a dog chases two cats"),  # "a cats"
    (NOUNS, "a dog and a cat"),
    (NOUNS, "a dog sitting next to a cat"),
    (NOUNS, "a man and his dog"),
    (NOUNS, "white shirts and skirts"),
    (NOUNS, "a big dog and a cat", "a big cat and a dog"),
    (NOUNS, "two dogs and three cats", "two cats and three dogs"),
    (NOUNS, "a dog in front of a cat", "a cat in front of a dog"),
    (NOUNS, "a man chases a person"),
    (NOUNS, "a dog with video equipment"),
    (NOUNS, "carrots, apples and potatoes"),
    (NOUNS, "his dog chases a cat", "his cat chases a dog"),
    (NOUNS, MANY, "a cat chases a dog under a tree", "a tree chases a cat under a dog",
     "a dog chases a tree under a cat"),
    (ADJECTIVES, "A red car hits an old bus.", "An old car hits a red bus."),
    (ADJECTIVES, "The car is red and the bus is old.", "The car is old and the bus is red."),
    (NOUNS, "a man on a bike near a man on a horse", "a horse on a bike near a man on a man",
     "a bike on a man near a man on a horse", "a man on a bike near a horse on a man"),
    (NOUNS, "a box on a box on a table", "a table on a box on a box", "a box on a table on a box"),
    (NOUNS, "a pair of dogs chases a pair of cats", "a pair of cats chases a pair of dogs"),
    (NOUNS, "one dog chases a cat, the other is asleep"),
    (NOUNS, "one dog chases a cat near other cars", "one cat chases a dog near other cars"),
    (ADJECTIVES, "a man in a blue shirt and a man in a red shirt"),
    (ADJECTIVES, "a man in a blue shirt hits a man in a red shirt",
     "a man in a red shirt hits a man in a blue shirt"),
    (ADJECTIVES, "One dog is white and the other is black."),
    (ADJECTIVES, "The cat is black and white."),
    (ADJECTIVES, "a big red car"),
    (ADJECTIVES, "a red car and a blue car"),
    (ADJECTIVES, "a red car behind a blue car", "a blue car behind a red car"),
    (ADJECTIVES, "a big car hits a large bus"),
    (ADJECTIVES, "several cars and a red bus"),
    (ADJECTIVES, "a red car bigger than an old bus", "an old car bigger than a red bus"),
    (ADJECTIVES, "multiple cars near a red bus"),
    (ADJECTIVES, "a large wooden spoon hits a large bowl"),  # "a large large spoon"
    # "a large small cube"
    (ADJECTIVES, "a large red cube hits a small ball", "a small red cube hits a large ball"),
    (ADJECTIVES, "a small plate full of old bread", "an old plate full of small bread"),
    (ATTRIBUTES, "a red car behind a bus", "a car behind a red bus"),
    (ATTRIBUTES, "An old brown dog chases a cat.", "A dog chases an old brown cat."),
    (ATTRIBUTES, "a black and white dog near a red bus", "a red dog near a black and white bus"),
    (ATTRIBUTES, "a glass filled with red wine"),
    (ATTRIBUTES, "a small glass filled with red wine", "a red glass filled with small wine"),
    (ATTRIBUTES, "a very tall giraffe behind a bus"),  # "a very giraffe"
    (ATTRIBUTES, "a small, old car behind a red bus", "a red car behind a small, old bus"),
    (ATTRIBUTES, "a red car behind a red bus"),
    (ATTRIBUTES, "a red shirt, hat and glove"),
    (ATTRIBUTES, "a red car and a blue car"),
    # "a white man in a shirt" may be true as well
    (ATTRIBUTES, "a man in a white shirt"),
    (ATTRIBUTES, "a man in a green shirt", "a green man in a shirt"),
    (ADJECTIVES, "an old man hits a white car"),
    (NOUNS, "a man hits a white car"),
    (RELATION, "a cube to the left of a ball", "a cube to the right of a ball"),
    (RELATION, "A cat on top of a box.", "A cat under a box."),
    (RELATION, "a cat on a box", "a cat under a box"),
    (RELATION, "a cat under a box", "a cat on top of a box"),
    (RELATION, "a cat behind a box", "a cat in front of a box"),
    (RELATION, "a cat in front of a box", "a cat behind a box"),
    (RELATION, "a lamp is on"),
    (RELATION, "a cat on the left", "a cat on the right"),
    (RELATION, "a room with no people on a sunny day"),
    (RELATION, "toys all over the floor, over 20 dogs on display"),
    (RELATION, "Under a tree sits a TV.", "On top of a tree sits a TV."),
    (RELATION, "a bird over two dogs", "a bird under two dogs"),
    (RELATION, "a cat near a box"),
    (RELATION, "boxes stacked on top of each other"),
    (RELATION, "a room without any cats"),
    (RELATION, "a bowl filled with fruit, along with a spoon"),
    (RELATION, "a cat up on a box"),
    (RELATION, "a bird above a cat on a box", "a bird below a cat on a box",
     "a bird above a cat under a box"),
    (ReplaceWord("NOUN"), "it is red"),
    (ReplaceWord("ADJ"), "a red umbrella", "a green umbrella", "a blue umbrella"),
    (ReplaceWord("VERB"), "a dog is flying", "a dog is running", "a dog is floating"),
    # A verb with an object replaces one with an object.
    (ReplaceWord("VERB"), "two men throw balls", "two men hold balls"),
    (ReplaceWord("VERB"), "two men talk"),
    (ReplaceWord("NUM"), "two dogs and three cats"),
    (ReplaceWord("NUM"), "four dogs", "two dogs", "three dogs"),
    (ReplaceWord("NUM"), "one dog"),
    (ReplaceWord("NUM"), "a dozen eggs"),
    (NOUNS, "two sheep and a red dog"),
    (ReplaceWord("NOUN"), "two sheep"),
    # What is denied stays true.
    (NOUNS, "There is no cat on the box."),
    (NOUNS, "a box without a cat or dog"),
    (ADJECTIVES, "a red car and no old bus"),
    (ATTRIBUTES, "a red car and no old bus"),
    (RELATION, "There is no cat on the box."),
    (RELATION, "a cat not sitting on top of a box"),
    (RELATION, "a cat without a hat", "a cat with a hat"),
    (ReplaceWord("NOUN"), "no cats, dogs or birds"),
    (ReplaceWord("ADJ"), "a cat that is not red"),
    (ReplaceWord("VERB"), "a cat not running"),
    (ReplaceWord("NUM"), "a room without two cats"),
    (ReplaceWord("ADJ"), "a cube taller than a ball full of water"),
    (ReplaceWord("ADJ"), "a Red TV", "a green TV", "a blue TV"),
]  # fmt: skip


@pytest.mark.parametrize("case", RULES, ids=lambda case: f"{type(case[0]).__name__}-{case[1]}")
def test_rules(case):
    rule, caption, *expected = case
    found = set.union(*(rewritten(rule, caption, seed) for seed in range(4)))
    assert found == {*expected}


def test_nouns_are_replaced_by_nouns_of_their_number_that_are_not_true():
    found = set.union(*(rewritten(ReplaceWord(), "a cow eats", seed) for seed in range(30)))
    # No light noun ("group"), no other word for it, an article that fits.
    assert {"a dog eats", "a tree eats", "an island eats", "a person eats"} <= found
    assert not any("group" in text or "women" in text for text in found)
    found = set.union(*(rewritten(ReplaceWord(), "two fire trucks", seed) for seed in range(30)))
    nouns = ("women", "umbrellas", "boats", "people", "children")
    assert found == {f"two {noun}" for noun in nouns}
    found = set.union(*(rewritten(ReplaceWord(), "a woman with a dog", seed) for seed in range(30)))
    assert not any("person" in text.split()[1] for text in found)
    assert "a dog with a dog" not in found


def test_frequent_words_come_more_often():
    words = Vocabulary({"NOUN": {"dog": 90, "cat": 10}})
    sentence = Sentence(("a", "cow"), ("", " ", ""), ("DET", "NOUN"))
    assert len(list(ReplaceWord().rewrites(sentence, random.Random(0), words))) == 8  # tries
    edits = (ReplaceWord().rewrites(sentence, random.Random(seed), words) for seed in range(300))
    drawn = [sentence.edited(next(edit)) for edit in edits]
    assert 0.83 < drawn.count("a dog") / 300 < 0.97
