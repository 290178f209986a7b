import random
from dataclasses import replace

import torch
from PIL import Image

from tests.refusals import refused
from vlmtune.data.collate import collate
from vlmtune.types import Group


def group(key: str, true: dict[str, set[str]], texts: list[str], exhaustive: bool) -> Group:
    truth = [[text in listed for text in texts] for listed in true.values()]
    return Group(
        key=key,
        image_ids=tuple(true),
        text_ids=tuple(texts),
        texts=tuple(f"caption {text}" for text in texts),
        truth=torch.tensor(truth, dtype=torch.bool),
        true_ids=tuple(frozenset(listed) for listed in true.values()),
        exhaustive=exhaustive,
    )


def test_against_a_naive_implementation():
    dice = random.Random(0)
    for _ in range(50):
        names = [f"t{i}" for i in range(8)]
        groups = []
        for key in range(dice.randint(1, 6)):
            texts = dice.sample(names, dice.randint(1, 4))
            images = {
                f"i{dice.randint(0, 3)}-{i}": set(dice.sample(names, dice.randint(0, 4)))
                for i in range(dice.randint(1, 3))
            }
            groups.append(group(f"g{key}", images, texts, dice.random() < 0.5))
        batch = collate(groups, damaged=["x"])
        assert (batch.pixels, batch.damaged) == (None, ("x",))
        assert batch.keys == tuple(one.key for one in groups)
        assert batch.texts == tuple(f"caption {text}" for text in batch.text_ids)
        n = 0
        for position, one in enumerate(groups):
            for i, image in enumerate(one.image_ids):
                assert batch.image_ids[n] == image
                assert batch.true_ids[n] == one.true_ids[i]
                assert batch.exhaustive[n] == one.exhaustive
                assert int(batch.image_group[n]) == position
                for m, text in enumerate(batch.texts):
                    name = text.removeprefix("caption ")
                    own = name in one.text_ids
                    assert bool(batch.targets.truth[n, m]) == (name in one.true_ids[i])
                    assert bool(batch.targets.same_group[n, m]) == own
                    assert bool(batch.targets.known[n, m]) == (own or one.exhaustive)
                n += 1
        assert n == len(batch.image_ids)
        assert len(set(batch.texts)) == len(batch.texts)


def test_pixels_are_stacked_in_order_and_shared_images_stay_separate():
    one = group("a", {"i": {"t"}}, ["t"], exhaustive=False)
    shown = ((shade, Image.new("RGB", (2, 3), (shade, 0, 0))) for shade in (5, 9))
    groups = [replace(one, key=str(shade), images=(image,)) for shade, image in shown]
    batch = collate(groups, lambda image: torch.full((3, 3, 2), float(image.getpixel((0, 0))[0])))
    assert batch.image_ids == ("i", "i")
    assert len(batch.texts) == 1
    assert batch.pixels[:, 0, 0, 0].tolist() == [5.0, 9.0]
    assert batch.pixels.shape == (2, 3, 3, 2)


def test_one_id_with_two_captions_is_refused():
    one = group("a", {"i": {"t"}}, ["t"], exhaustive=False)
    with refused("one caption for text id 't'"):
        collate([one, replace(one, key="b", texts=("another",))])


def test_a_text_made_for_one_image_is_not_the_others_own():
    pair = group("a", {"i": {"t"}, "j": {"u"}}, ["t", "u", "v"], exhaustive=False)
    own = torch.tensor([[True, True, True], [True, True, False]])
    targets = collate([replace(pair, same_group=own)]).targets
    assert targets.same_group.equal(own)
    assert targets.known.equal(own)
    assert targets.truth.int().tolist() == [[1, 0, 0], [0, 1, 0]]


def test_mined_texts_are_marked_where_they_are_false():
    a = group("a", {"i": {"t", "u"}, "j": {"s"}}, ["t", "s"], exhaustive=True)
    b = group("b", {"k": {"u"}}, ["u", "v"], exhaustive=True)
    c = group("c", {"l": {"w"}}, ["w"], exhaustive=True)
    assert collate([a, b, c]).targets.mined_negatives is None
    mined = ((a, "uwx"), (b, "t"))
    groups = [*(replace(x, mined_negatives=frozenset(names)) for x, names in mined), c]
    batch = collate(groups)
    assert batch.text_ids == ("t", "s", "u", "v", "w")
    mined = batch.targets.mined_negatives
    assert mined.int().tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 0, 1], [1, 0, 0, 0, 0], [0] * 5]
    plain = collate([a, b, c]).targets
    for name in ("truth", "known", "same_group"):
        assert getattr(batch.targets, name).equal(getattr(plain, name))
    groups = [replace(one, mined_negatives=frozenset()) for one in (a, b, c)]
    none = collate(groups).targets.mined_negatives
    assert not none.any()
