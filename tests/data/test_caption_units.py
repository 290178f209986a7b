import pytest
import torch

from tests.data.test_noun_phrases import group
from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.caption_units import CaptionUnits
from vlmtune.data.collate import collate
from vlmtune.language.caption_edits import ReplaceWord, ReverseRelation, SwapNouns
from vlmtune.language.rewriting import Rewriter


def units(*rules, count=2) -> CaptionUnits:
    return CaptionUnits(CaptionNegatives(Rewriter(list(rules) or [ReverseRelation()])), count)


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        ("A red cube left of the blue sphere.", ("red cube left of the blue sphere",)),
        ("a dog in front of two cats", ("dog in front of two cats",)),
        ("A man rides a horse, and a cat sleeps.", ("man rides a horse",)),
        ("a red cube and a big dog", ("red cube", "big dog")),
        ("a green cube and no yellow dog", ("green cube",)),
        ("a room without a cat", ("room",)),
        ("a dog is not left of a cat", ("dog",)),
        ("It runs.", ("It runs.",)),
        # The one who holds it may be the hat or the woman.
        ("a woman with a hat holding a cup", ("woman with a hat",)),
        ("a man in a suit and tie holds a cup", ("man in a suit",)),
        ("a cup on a table beside a chair", ("cup on a table", "table beside a chair")),
    ],
)
def test_units_of_a_caption(caption, found):
    assert units().of_caption(caption) == found


TEXTS = ("a dog left of a cat", "a cat right of a dog", "a cube on a table")


def test_a_foil_is_false_of_the_images_of_its_unit_alone():
    pair = group("a", 2, TEXTS, [[1, 1, 0], [0, 0, 1]])
    other = group("b", 1, ("a dog under a cat",), [[1]])
    batch = collate(units().groups([pair, other]))
    names = {text: column for column, text in enumerate(batch.texts)}
    targets = batch.targets
    foils = targets.same_group & ~targets.truth
    # "dog right of a cat" is of the first image, "cube under a table" of the second.
    assert foils[:, names["dog right of a cat"]].tolist() == [True, False, False]
    assert foils[:, names["cube under a table"]].tolist() == [False, True, False]
    assert not targets.truth[:, names["cube under a table"]].any()
    assert targets.truth[0].sum() == 2
    assert targets.truth[1].sum() == 1


def test_each_epoch_draws_units_anew_and_no_foil_is_one_that_was_not_drawn():
    texts = ("a dog left of a cat", "a dog right of a cat")
    (one,) = units(count=1).groups([group("a", 1, texts, [[1, 1]])])
    assert len(one.texts) == 1
    assert one.truth.all()
    some = [group("a", 1, tuple(f"a dog on a {x}" for x in ("box", "table", "chair")), [[1, 1, 1]])]
    made = units(count=1)
    drawn = {made.groups(some, 0, epoch)[0].texts for epoch in range(20)}
    assert len(drawn) == 3
    assert made.groups(some, 0, 5)[0].texts == made.groups(some, 0, 5)[0].texts


def test_no_foil_is_a_unit_or_an_object_of_a_caption_that_was_not_drawn():
    made = units(ReplaceWord("NOUN"))
    made.prepare(lambda: ["a man on a horse", "a dog"])
    whole = [group("a", 1, ("a man on a horse", "a black dog"), [[1, 1]])]
    for epoch in range(20):
        shown = draw_captions(whole, 1, 0, epoch)
        (one,) = made.groups(shown, 0, epoch, whole)
        foils = set(one.texts[1:])
        assert foils.isdisjoint({"man", "horse", "dog", "black dog", "man on a horse"})
    assert "cat" not in made.known_of("There is no cat")
    assert made.known_of("A black dog.") == ("black dog", "dog")


def test_rules_learn_the_words_of_the_captions():
    made = units(ReplaceWord("NOUN"), SwapNouns())
    made.prepare(lambda: ["a dog on a box", "a cat on a table"])
    (one,) = made.groups([group("a", 1, ("a dog on a box",), [[1]])])
    assert one.truth.equal(torch.tensor([[True, False]]))
