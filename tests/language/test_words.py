import pytest

from vlmtune.language.canonical import canonical
from vlmtune.language.words import Sentence, article, words


def sentence(caption: str, proper: bool = False) -> Sentence:
    split, gaps = Sentence.split(caption)
    return Sentence(split, gaps, ("PROPN" if proper else "NOUN",) * len(split))


def test_words_as_the_treebank_splits_them_and_canonical_captions():
    assert words("A dog's owner, who can't run 3.5 miles (red-hot)!") == [
        *["A", "dog", "'s", "owner", ",", "who", "ca", "n't", "run", "3.5", "miles"],
        *["(", "red-hot", ")", "!"],
    ]
    assert words("the dogs' park") == ["the", "dogs", "'", "park"]
    assert words("") == []
    assert canonical("  A  Dog.") == canonical("a dog") == "a dog"
    assert canonical("a dog!") != canonical("a dog")


@pytest.mark.parametrize(
    "caption", ["", " ", "A dog,  and a\tcat. ", " can't  (stop)!", "“Ünï” – 3.5 km", "a"]
)
def test_nothing_is_lost_between_words(caption):
    split, gaps = Sentence.split(caption)
    assert list(split) == words(caption)
    assert len(gaps) == len(split) + 1
    assert sentence(caption).edited({}) == caption


@pytest.mark.parametrize(
    ("caption", "edits", "expected"),
    [
        ("a red cube", {(1, 2): ["blue"]}, "a blue cube"),
        ("a red cube", {(1, 2): []}, "a cube"),
        ("a red cube", {(1, 1): ["big"]}, "a big red cube"),
        ("a red cube", {(0, 2): ["the"]}, "the cube"),
        ("a red cube", {(2, 3): []}, "a red"),
        ("a cube, a ball", {(1, 1): ["old"], (4, 4): ["red"]}, "an old cube, a red ball"),
        ("an old cat, a dog", {(1, 2): [], (5, 5): ["old"]}, "a cat, an old dog"),
        ("A cat  sits.", {(1, 2): ["orange", "cat"]}, "An orange cat  sits."),
        ("Dogs chase cats", {(0, 1): ["cats"], (2, 3): ["Dogs"]}, "Cats chase dogs"),
        ("Red cars", {(0, 1): []}, "Cars"),
        ("Dog", {(0, 1): []}, ""),
        ("DOG AND CAT", {(0, 1): ["CAT"], (2, 3): ["DOG"]}, "CAT AND DOG"),
        ("I see dogs", {(0, 1): ["dogs"], (2, 3): ["I"]}, "Dogs see I"),
        ("a old man", {(2, 3): ["dog"]}, "a old dog"),  # not ours to correct
        ("a man", {(1, 1): ["very"], (1, 2): ["old", "man"]}, "a very old man"),
        ("Dogs run. Cats sit.", {(0, 1): ["Cats"], (3, 4): ["Dogs"]}, "Cats run. Dogs sit."),
        ("St. Peter's dog", {(2, 3): ["dog"], (4, 5): ["Peter"]}, "St. dog's Peter"),
        ("dogs run. Cats sit.", {(0, 1): ["Cats"], (3, 4): ["dogs"]}, "cats run. Dogs sit."),
    ],
)
def test_edits(caption, edits, expected):
    assert sentence(caption).edited(edits) == expected


def test_a_name_keeps_its_capital():
    assert (
        sentence("Paris by night", proper=True).edited({(0, 1): ["night"], (2, 3): ["Paris"]})
        == "Night by Paris"
    )


@pytest.mark.parametrize(
    ("word", "right"),
    [
        *[(word, "an") for word in ("apple", "Old", "hour", "umbrella", "uninteresting", "8-year")],
        *[(word, "an") for word in ("LCD", "MRI", "urn", "F-16", "rv", "Xbox")],
        *[(word, "a") for word in ("dog", "unicorn", "uniform", "used", "European", "one", "")],
        *[
            (word, "a")
            for word in ("urinal", "utensil", "ukulele", "user", "USB", "U-turn", "RED", "St")
        ],
    ],
)
def test_articles(word, right):
    assert article(word) == right
