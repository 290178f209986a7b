import sys
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
SENTENCES = """
A red cube is to the left of a blue sphere.|DJNXIDNIDJN.
A large metal cylinder stands behind two small rubber cubes.|DJJNVI#JJN.
The brown dog chases a white cat across the yard.|DJNVDJNIDN.
Two women are sitting on a wooden bench in the park.|#NXVIDJNIDN.
A man riding a wave on top of a surfboard.|DNVDNINIDN.
A young girl in a pink dress holds a striped umbrella.|DJNIDJNVDJN.
Several people walk along the beach at sunset.|JNVIDNIN.
A parked motorcycle in front of an old brick building.|DJNINIDJJN.
The cat and the dog sleep together on the couch.|DNCDNVRIDN.
A plate of food with broccoli, rice and grilled chicken.|DNININ.NCJN.
A tall giraffe is eating leaves from a tree.|DJNXVNIDN.
Some kids play soccer while their parents watch.|DNVNSONV.
A kitchen with white cabinets and a stainless steel refrigerator.|DNIJNCDJJN.
There is a yellow fire hydrant next to the street.|OXDJNNRIDN.
A black and white photo of a train station.|DJCJNIDNN.
The boy swings a baseball bat during a game.|DNVDNNIDN.
An airplane flies over snow-covered mountains.|DNVIJN.
A woman wearing glasses looks at her phone.|DNVNVION.
Three sheep graze in a grassy field near a fence.|#NVIDJNIDN.
A clock tower rises above the busy street.|DNNVIDJN.
The man who is wearing a hat is talking to a woman.|DNOXVDNXVIDN.
A bowl of fresh fruit sits on the kitchen counter.|DNIJNVIDNN.
He is trying to catch the ball with his glove.|OXVTVDNION.
A small bird perched on a thin branch.|DJNVIDJN.
A bus stops at the bus stop to pick up passengers.|DNVIDNNTVIN.
The old man's bicycle leans against a stone wall.|DJNTNVIDJN.
Children are flying colorful kites on a windy day.|NXVJNIDJN.
A bear that is standing in the water looks for fish.|DNOXVIDNVIN.
An empty bottle lies under the round table.|DJNVIDJN.
A skier jumps high in the air above the slope.|DNVRIDNIDN.
Green apples and ripe bananas in a basket.|JNCJNIDN.
A group of elephants cross a shallow river.|DNINVDJN.
The smiling bride cuts the wedding cake.|DJNVDNN.
Someone has placed a vase of flowers on the desk.|OXVDNINIDN.
A truck drives down a dirt road past some cows.|DNVIDNNIDN.
Two zebras stand close to each other.|#NVRIDJ.
A laptop computer, a mouse and a cup of coffee on a desk.|DNN.DNCDNINIDN.
The tennis player is about to serve the ball.|DNNXITVDN.
A city street filled with cars and traffic lights.|DNNVINCNN.
A cow is drinking water from the shiny metal bucket.|DNXVNIDJJN.
People are waiting for their luggage at the airport.|NXVIONIDN.
A half-eaten sandwich on a blue plate.|DJNIDJN.
The horse isn't wearing a saddle.|DNXTVDN.
A little boy brushing his teeth in the bathroom mirror.|DJNVONIDNN.
A sailboat floats on the calm lake.|DNVIDJN.
A bunch of ripe tomatoes hanging from the vine.|DNIJNVIDN.
The woman gave the child a toy train.|DNVDNDNN.
A pizza cut into eight slices is on the table.|DNVI#NXIDN.
Surfers run toward the ocean with their boards.|NVIDNION.
A very large crowd watches the baseball game.|DRJNVDNN.
A bench made of dark wood under a leafy tree.|DNVIJNIDJN.
The left glove is darker than the right one.|DJNXJIDJ#.
A person on skis slides down a snowy hill.|DNINVIDJN.
Both birds have long necks and orange beaks.|DNVJNCJN.
A police officer rides a horse through the crowd.|DNNVDNIDN.
A street sign hangs from a pole on the corner.|DNNVIDNIDN.
The children are playing with a stuffed toy.|DNXVIDJN.
A chef prepares a meal in a restaurant kitchen.|DNVDNIDNN.
A dog with a frisbee in its mouth runs quickly.|DNIDNIONVR.
A metal fence surrounds the green pasture.|DJNVDJN.
No one is sitting in the red chairs.|D#XVIDJN.
A man and a woman pose for a picture in Paris.|DNCDNVIDNIP.
The teddy bear sits between two books on a shelf.|DNNVI#NIDN.
A boat is tied to the dock as the sun sets.|DNXVIDNSDNV.
An elderly couple walks hand in hand.|DJNVNIN.
A gray cat lies on top of a parked car.|DJNVINIDJN.
Fresh vegetables are being sold at the market.|JNXXVIDN.
A brown leather suitcase next to a black backpack.|DJJNRIDJN.
A cat looks like it wants to play.|DNVSOVTV.
The first runner crosses the line.|DJNVDN.
A cake decorated with icing and strawberries.|DNVINCN.
Cars drive on the road beside the tracks.|NVIDNIDN.
"""
EXAMPLES = [line.rpartition("|")[::2] for line in SENTENCES.split("\n") if line]


def expected(codes: str) -> list[str]:
    return [CODES[code] for code in codes]


def test_the_codes_fit_the_words():
    assert len(EXAMPLES) >= 60
    assert [caption for caption, codes in EXAMPLES if len(words(caption)) != len(codes)] == []


def test_accuracy_on_tagged_captions():
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


def test_every_known_tag_is_universal():
    tags = {tag for caption, _ in EXAMPLES for tag in LexiconTagger().tag(words(caption))}
    assert tags <= set(CODES.values())


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
        pipeline = SimpleNamespace(vocab="words")
        return _Pipeline(pipeline.vocab)

    class _Pipeline:
        def __init__(self, vocab):
            self.vocab = vocab

        def __call__(self, document):
            return [SimpleNamespace(pos_="NOUN" if w[0] == "d" else "X") for w in document.words]

    library.load = load  # type: ignore[attr-defined]
    tokens.Doc = lambda vocab, words: SimpleNamespace(words=words)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", library)
    monkeypatch.setitem(sys.modules, "spacy.tokens", tokens)
    return library


def test_spacy_tags_words_as_they_are_split(spacy):
    tagger = SpacyTagger("some_model")
    assert isinstance(tagger, Tagger)
    assert spacy.loaded == []
    assert tagger.tag(["a", "dog", "does", "n't"]) == ["X", "NOUN", "NOUN", "X"]
    assert tagger.tag([]) == []
    assert spacy.loaded == ["some_model"]
    assert tagger.spec()["init_args"] == {"model": "some_model"}


def test_a_missing_pipeline_is_one_line(spacy):
    with refused("expected spaCy with the pipeline 'absent'"):
        SpacyTagger("absent").tag(["a"])


def test_a_missing_library_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with refused("or use the LexiconTagger"):
        SpacyTagger().tag(["a"])
