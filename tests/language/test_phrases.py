import pytest

from vlmtune.language.phrases import compatible, noun_phrases
from vlmtune.language.tagger import LexiconTagger
from vlmtune.language.words import Sentence


def sentence(caption: str) -> Sentence:
    split, gaps = Sentence.split(caption)
    return Sentence(split, gaps, tuple(LexiconTagger().tag(split)))


def test_noun_phrases():
    found = noun_phrases(sentence("Two big, black dogs and a fire truck in front of it."))
    assert [(p.adjectives, p.nouns) for p in found] == [
        (("big", ",", "black"), ("dogs",)),
        ((), ("fire", "truck")),
        ((), ("front",)),
    ]
    assert [p.plural for p in found] == [True, False, False]
    assert [p.light for p in found] == [False, False, True]
    assert found[0].modifiers == ("big", ",", "black", "two")
    assert noun_phrases(sentence("it runs")) == []
    # A predicate is no part of the next phrase.
    (cup, dog) = noun_phrases(sentence("the cup is red and the dog barks"))
    assert (cup.adjectives, dog.adjectives) == ((), ())


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [
        ("dog", "Dog", True),
        ("dog", "dogs", True),
        ("box", "boxes", True),
        ("woman", "person", True),
        ("person", "woman", True),
        ("woman", "man", False),
        ("man", "boy", False),
        ("skier", "woman", True),
        ("red", "blue", False),
        ("big", "large", True),
        ("bathroom", "room", True),
        ("bathroom", "kitchen", False),
        ("reading", "holding", True),
        ("moving", "driving", True),
    ],
)
def test_compatible(one, other, right):
    assert compatible(one, other) == right
