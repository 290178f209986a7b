import pytest

from vlmtune.language.tagger import LexiconTagger
from vlmtune.language.vocabulary import Vocabulary, kind

CAPTIONS = ["A red dog sits on 12 chairs.", "a green dog is sitting on a chair", "X café boxes"]


def test_words_by_kind():
    vocabulary = Vocabulary.learn(CAPTIONS, LexiconTagger())
    assert vocabulary.counts["NOUN"] == {"chair": 1, "dog": 2}
    assert vocabulary.counts["NOUN plural"] == {"boxes": 1, "chairs": 1}
    assert vocabulary.counts["ADJ colour"] == {"green": 1, "red": 1}
    assert vocabulary.counts["VERB ing"] == {"sitting": 1}
    assert vocabulary.counts["VERB s"] == {"sits": 1}
    assert "NUM" not in vocabulary.counts
    assert vocabulary.like("cat", "NOUN") == (("chair", "dog"), (1, 3))
    assert vocabulary.like("run", "VERB") == ((), ())


@pytest.mark.parametrize(
    ("word", "tag", "right"),
    [
        ("women", "NOUN", "NOUN plural"),
        ("glass", "NOUN", "NOUN"),
        ("Tiny", "ADJ", "ADJ size"),
        ("happy", "ADJ", "ADJ"),
        ("parked", "VERB", "VERB ed"),
        ("worn", "VERB", "VERB ed"),
        ("sits", "VERB", "VERB s"),
        ("pass", "VERB", "VERB base"),
        ("under", "ADP", "ADP"),
        ("menus", "NOUN", "NOUN plural"),
        ("1", "NUM", "NUM one"),
    ],
)
def test_kinds(word, tag, right):
    assert kind(word, tag) == right
