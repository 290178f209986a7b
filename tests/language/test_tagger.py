import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.refusals import refused
from vlmtune.language.tagger import LexiconTagger, SpacyTagger, Tagger
from vlmtune.language.words import words

# Tagged by hand: N NOUN, P PROPN, V VERB, X AUX, J ADJ, R ADV, I ADP, D DET, # NUM, O PRON,
# C CCONJ, S SCONJ, T PART, "." PUNCT.
CODES = dict(
    zip(
        "NPVXJRID#OCST.",
        "NOUN PROPN VERB AUX ADJ ADV ADP DET NUM PRON CCONJ SCONJ PART PUNCT".split(),  # noqa: SIM905
        strict=True,
    )
)
SENTENCES = Path(__file__).with_name("tagged_captions.txt").read_text()
EXAMPLES = [line.rpartition("|")[::2] for line in SENTENCES.splitlines()]


def expected(codes: str) -> list[str]:
    return [CODES[code] for code in codes]


def test_accuracy_on_tagged_captions():
    assert len(EXAMPLES) >= 60
    assert [caption for caption, codes in EXAMPLES if len(words(caption)) != len(codes)] == []
    tagger = LexiconTagger()
    total, wrong = 0, []
    for caption, codes in EXAMPLES:
        split = words(caption)
        for word, got, want in zip(split, tagger.tag(split), expected(codes), strict=True):
            total += 1
            if got != want:
                wrong.append((caption, word, got, want))
    print(total, wrong)
    assert 1 - len(wrong) / total > 0.97, wrong


@pytest.mark.parametrize(
    ("caption", "word", "tag"),
    [
        ("a wave on the sea", "wave", "NOUN"),
        ("two men wave at us", "wave", "VERB"),
        ("a metal cube", "metal", "ADJ"),
        ("a cube of metal", "metal", "NOUN"),
        ("an orange cat", "orange", "ADJ"),
        ("an orange on a plate", "orange", "NOUN"),
        ("a man riding a horse", "riding", "VERB"),
        ("a parked car", "parked", "ADJ"),
        ("a car parked here", "parked", "VERB"),
        ("the dog that barks", "that", "PRON"),
        ("that dog barks", "that", "DET"),
        ("next to a house", "to", "ADP"),
        ("about to eat lunch", "to", "PART"),
        ("a glorpy tree", "glorpy", "NOUN"),
        ("a furrowless field", "furrowless", "ADJ"),
        ("she waits patiently", "patiently", "ADV"),
        ("people in Boston", "Boston", "PROPN"),
        ("a 3.5 kg fish", "3.5", "NUM"),
        ("a long-haired dog", "long-haired", "ADJ"),
        ("a red t-shirt", "t-shirt", "NOUN"),
        ("a dog ’s bone", "’s", "PART"),
        ("🙂 a dog", "🙂", "PUNCT"),
        ("a cathedral on a hill", "cathedral", "NOUN"),
        ("a father holding a dog", "father", "NOUN"),
        ("father", "father", "NOUN"),
        ("a white refrigerator freezer stands", "freezer", "NOUN"),
        ("bigger", "bigger", "ADJ"),
        ("happier", "happier", "ADJ"),
        ("a coastal , rocky town", "coastal", "ADJ"),
        ("a humongous and fluffy cat", "humongous", "ADJ"),
        ("a dog sits . Large Boeing planes", "Large", "ADJ"),
        ("she 's holding a cat", "holding", "VERB"),
        ("a trash can next to a bench", "can", "NOUN"),
        ("a trash can sitting by a bench", "can", "NOUN"),
        ("a dog can run", "can", "AUX"),
        ("a street in New Yorkshire", "New", "PROPN"),
    ],
)
def test_rules(caption, word, tag):
    split = caption.split()
    assert LexiconTagger().tag(split)[split.index(word)] == tag


def test_one_tag_a_word_whatever_comes():
    tagger = LexiconTagger()
    assert isinstance(tagger, Tagger)
    odd = ["", "to", "'s", "as", "next", "-"]
    for split in ([], *([x] for x in odd), ["a"] * 300, ["red"] * 3000, ["ÄÖ", "\n", "1"]):
        assert len(tagger.tag(split)) == len(split)
    first = tagger.tag(["a", "dog"])
    first.append("changed")
    assert tagger.tag(["a", "dog"]) == ["DET", "NOUN"]


@pytest.fixture
def spacy(monkeypatch):
    """A library that calls every word that begins with "d" a noun."""
    library, tokens = ModuleType("spacy"), ModuleType("spacy.tokens")
    library.loaded = []  # type: ignore[attr-defined]

    def load(name, exclude=()):
        if name == "absent":
            raise OSError("[E050] Can't find model 'absent'.\nIt doesn't seem to be a package.")
        library.loaded.append(name)
        return _Pipeline()

    class _Pipeline:
        vocab = "words"

        def __call__(self, document):
            return [SimpleNamespace(pos_="NOUN" if w[0] == "d" else "X") for w in document.words]

    library.load = load  # type: ignore[attr-defined]
    tokens.Doc = lambda vocab, words: SimpleNamespace(words=words)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", library)
    monkeypatch.setitem(sys.modules, "spacy.tokens", tokens)
    return library


def test_spacy_tags_words_as_they_are_split_or_says_what_is_missing(spacy):
    tagger = SpacyTagger("some_model")
    assert isinstance(tagger, Tagger)
    assert spacy.loaded == []
    assert tagger.tag(["a", "dog", "does", "n't"]) == ["X", "NOUN", "NOUN", "X"]
    assert tagger.tag([]) == []
    assert spacy.loaded == ["some_model"]
    assert tagger.spec()["init_args"] == {"model": "some_model"}
    with refused("expected spaCy with the pipeline 'absent'"):
        SpacyTagger("absent").tag(["a"])
