import pytest
from PIL import Image

from data_builders.shard_builder import images_group
from vlmtune.data.collate import collate
from vlmtune.data.joined_images import JoinedImages


def group(key, *captions, size=(20, 10), colour="red"):
    image = Image.new("RGB", size, colour)
    return images_group(key, [key], captions, [captions], pictures=(image,))


DOG, CUBE = "A dog runs.", "the red cube"
PAIR = [group("a", DOG, colour="red"), group("b", CUBE, colour="blue")]


def joined(groups, **options):
    return JoinedImages(16).changed(groups, **{"seed": 0, "epoch": 0, "step": 0, **options})


def test_texts_of_a_pair():
    for seed in range(10):
        (one,) = joined(PAIR, seed=seed)
        first, second, negative = one.texts
        assert {first, second} == {"A dog runs. the red cube.", "the red cube. A dog runs."}
        assert one.truth.tolist() == [[True, True, False]]
        # A noun for a noun, as there is no other part of speech in both.
        assert sorted(negative.split()) == sorted(["A", "cube", "runs.", "the", "red", "dog."])
        assert set(negative.split(". ")) <= {
            "A cube runs",
            "the red dog",
            "the red dog.",
            "A cube runs.",
        }
        assert one.true_ids == (frozenset({first, second}),)
    # There is no negative without two words of one kind.
    (one,) = joined([group("a", "a dog"), group("b", "a dog runs")])
    assert one.truth.all()
    # A man may be a person, and one dog is not two.
    for pair in (("a man", "a person"), ("one dog", "one cats"), ("one dog", "two dog")):
        (one,) = joined([group(text, text) for text in pair])
        assert one.truth.all()


def test_further_sentences_are_true_but_of_no_order():
    first = group("a", "A dog runs. It is black.", "A black dog.", "Tall grass.")
    second = group("b", "A cube. A table. A lamp.")
    (one,) = joined([first, second])
    assert one.truth.tolist() == [[True] * 4 + [False]]
    assert one.same_group.tolist() == [[True, True, False, False, True]]
    targets = collate([one]).targets
    assert targets.truth.equal(one.truth)
    assert (targets.same_group & ~targets.truth).tolist() == [[False] * 4 + [True]]
    for text in one.texts[2:4]:
        sentences = {part.rstrip(".") for part in text.split(". ")}
        assert len(sentences & {"A cube", "A table", "A lamp"}) == 1
        assert len(sentences) == 2


@pytest.mark.parametrize(("size", "other"), [((20, 10), (15, 0)), ((10, 20), (0, 15))])
def test_images_are_squashed_along_their_short_side(size, other):
    seen = set()
    for seed in range(8):
        pair = [
            group("a", DOG, size=size, colour="red"),
            group("b", CUBE, size=size, colour="blue"),
        ]
        (one,) = joined(pair, seed=seed)
        (image,) = one.images
        assert image.size == (16, 16)
        corners = [image.getpixel(at) for at in ((0, 0), other, (15, 15))]
        assert corners[0] == corners[1] != corners[2]
        seen.add(corners[0])
    assert seen == {(255, 0, 0), (0, 0, 255)}


def test_pairs_have_one_shape_and_every_other_step_is_plain():
    groups = [group(f"w{i}", f"dog {i}") for i in range(4)]
    groups += [group(f"h{i}", f"cat {i}", size=(10, 20)) for i in range(3)]
    for seed in range(5):
        names = [one.key for one in joined(groups, seed=seed)]
        assert len(names) == 3
        mixed = [name for name in names if ("w" in name) == ("h" in name)]
        assert len(mixed) <= 1
        assert len({part for name in names for part in name.split("+")}) == 6
    groups = [group("a", "a dog", "a pet"), group("b", "a cube", "a box")]
    assert [len(joined(groups, step=step)) for step in range(4)] == [1, 2, 1, 2]
    assert [len(one.texts) for one in joined(groups, step=1)] == [1, 1]
    assert len(joined(groups[:1])) == 1
