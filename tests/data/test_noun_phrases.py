from dataclasses import replace
from itertools import compress

import pytest

from data_builders.shard_builder import images_group
from tests.refusals import refused
from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.collate import collate
from vlmtune.data.noun_phrases import NounPhrases
from vlmtune.types import Group


def group(key: str, images: int, texts: tuple[str, ...], truth: list[list[int]]) -> Group:
    true = [set(compress(texts, row)) for row in truth]
    return images_group(key, [f"{key}{i}" for i in range(images)], texts, true, exhaustive=True)


@pytest.mark.parametrize(
    ("caption", "phrases"),
    [
        ("A red car.", ("red car",)),
        ("Two big, black dogs and a fire truck", ("two big, black dogs", "fire truck")),
        ("a red-brown horse in front of the horse", ("red-brown horse", "horse")),
        ("A dog chases a dog", ("dog",)),
        ("a Black and White cat", ("black and white cat",)),
        ("A room with no cat, dog or bird.", ("room",)),
        ("A man without a hat or a coat rides a horse", ("man", "horse")),
        ("a dog that is not wearing a collar", ("dog",)),
        ("A kitchen free of people, beside a car", ("kitchen", "car")),
        ("no red cube behind a cone", ("cone",)),
        ("It runs.", ("It runs.",)),  # of itself
        (".", (".",)),
    ],
)
def test_phrases_of_a_caption(caption, phrases):
    assert NounPhrases().of_caption(caption) == phrases


def test_phrases_of_a_file_come_before_the_tagger(tmp_path):
    file = tmp_path / "phrases.json"
    file.write_text('{"A red car.": ["a car", "red", " ", "a car"], "A cat.": []}')
    phrases = NounPhrases(file=str(file))
    assert phrases.of_caption("a red car.") == ("a car", "red")
    assert phrases.of_caption("A cat.") == ("A cat.",)
    assert phrases.of_caption("A dog.") == ("dog",)
    file.write_text('{"A red car.": "red car"}')
    with refused(f"expected lists of phrases by caption in {file}"):
        NounPhrases(file=str(file))


def test_phrases_are_texts_of_the_images_whose_captions_have_them():
    texts = ("a dog left of a red cube", "a red cube left of a dog", "a cat", "a big horse")
    pair = group("a", 2, texts, [[1, 0, 1, 0], [0, 1, 0, 0]])
    other = group("b", 1, ("A dog barks",), [[1]])
    batch = collate(NounPhrases().groups([pair, other]))
    assert batch.image_ids == ("a0", "a1", "b0")
    assert batch.texts == batch.text_ids == ("dog", "red cube", "cat")  # no horse: it is false
    assert batch.targets.truth.int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert batch.targets.known.equal(batch.targets.same_group)
    # Within a group what is not true is unknown, though the corpus of captions is exhaustive.
    assert batch.targets.known[:2].equal(batch.targets.truth[:2])


def test_phrases_of_captions_that_were_not_drawn_are_true():
    whole = [
        group("a", 1, ("a dog", "a cat"), [[1, 1]]),
        group("b", 1, ("a cat", "a cow"), [[1, 1]]),
    ]
    # Ids need not be the captions.
    ids = {"a dog": "1", "a cat": "2", "a cow": "3"}
    for number, one in enumerate(whole):
        names = tuple(ids[text] for text in one.texts)
        whole[number] = replace(one, text_ids=names, true_ids=(frozenset(names),))
    for epoch in range(8):
        shown = draw_captions(whole, 1, 0, epoch)
        batch = collate(NounPhrases().groups(shown, whole=whole))
        truth = {"dog": [True, False], "cat": [True, True], "cow": [False, True]}
        assert batch.targets.truth.T.tolist() == [truth[text] for text in batch.texts]


def test_phrases_may_be_none_move_with_their_batch_or_be_a_corpus_own():
    (empty,) = NounPhrases().groups([group("a", 2, ("a dog",), [[0], [0]])])
    assert (empty.texts, empty.truth.shape) == ((), (2, 0))
    groups = [group("a", 1, ("a dog",), [[1]])]
    batch = replace(collate(groups), phrases=collate(NounPhrases().groups(groups)))
    moved = batch.to("meta")
    assert moved.phrases.targets.truth.device.type == "meta"
    assert moved.phrases.texts == ("dog",)
    (made,) = Listed().groups([group("a", 1, ("boats at sea",), [[1]])])
    assert made.texts == ("the sea", "boats")


class Listed(NounPhrases):
    """Phrases that a corpus brings."""

    def of_caption(self, caption):
        return ("the sea", caption.split()[0])
