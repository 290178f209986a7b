import json

import pytest

from vlmtune.errors import UserError
from vlmtune.language.tagger import LexiconTagger
from vlmtune.language.vocabulary import Vocabulary, kind

CAPTIONS = ["A red dog sits on 2 chairs.", "a green dog is sitting on a chair", "X café boxes"]


def test_words_by_kind():
    vocabulary = Vocabulary.learn(CAPTIONS, LexiconTagger())
    assert vocabulary.counts["NOUN"] == {"chair": 1, "dog": 2}
    assert vocabulary.counts["NOUN plural"] == {"boxes": 1, "chairs": 1}
    assert vocabulary.counts["ADJ colour"] == {"green": 1, "red": 1}
    assert vocabulary.counts["VERB ing"] == {"sitting": 1}
    assert vocabulary.counts["VERB s"] == {"sits": 1}
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
    ],
)
def test_kinds(word, tag, right):
    assert kind(word, tag) == right


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "words.json"
    vocabulary = Vocabulary.learn(CAPTIONS, LexiconTagger())
    vocabulary.save(path)
    again = Vocabulary.load(path)
    assert again.counts == vocabulary.counts
    assert again.like("cat", "NOUN") == vocabulary.like("cat", "NOUN")
    assert [p.name for p in tmp_path.iterdir()] == ["words.json"]


def test_what_is_wrong_is_one_line(tmp_path):
    path = tmp_path / "words.json"
    good = {"version": 1, "counts": {"NOUN": {"dog": 1}}}
    zero = {"version": 1, "counts": {"NOUN": {"dog": 0}}}
    for wrong in ([], {}, {**good, "version": 2}, {**good, "counts": ["dog"]}, zero):
        path.write_text(json.dumps(wrong))
        with pytest.raises(UserError, match="expected a vocabulary") as error:
            Vocabulary.load(path)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="expected a vocabulary"):
        Vocabulary.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="expected to write"):
        Vocabulary({}).save(tmp_path / "none" / "words.json")
