from collections import Counter
from dataclasses import replace

import torch

from data_builders.shard_builder import images_group
from vlmtune.data.caption_draw import draw_captions
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.language.caption_edits import SwapNouns
from vlmtune.language.rewriting import Rewriter
from vlmtune.types import Group


def image(key: str, captions: int = 5, false: int = 0) -> Group:
    """An image with true captions t0, t1, ... and false ones f0, f1, ..."""
    texts = (*(f"{key} t{j}" for j in range(captions)), *(f"{key} f{j}" for j in range(false)))
    return images_group(key, [f"image {key}"], texts, [texts[:captions]])


def pair(key: str) -> Group:
    """A scene and its hard negative as AR4T has them: a caption and an alternative for each."""
    texts = (f"{key} a>b", f"{key} b<a", f"{key} a<b", f"{key} b>a")
    return images_group(key, [f"{key}0", f"{key}1"], texts, [texts[:2], texts[2:]], True)


def test_an_image_shows_each_of_its_captions_in_some_epoch_and_about_equally_often():
    group = image("a")
    shown = [draw_captions([group], 1, 0, epoch)[0].texts for epoch in range(500)]
    assert {len(texts) for texts in shown} == {1}
    counts = Counter(text for (text,) in shown)
    assert set(counts) == set(group.texts)
    assert all(70 <= count <= 130 for count in counts.values())  # 100 +- 3.4 standard deviations


def test_several_captions_are_drawn_without_replacement_and_false_ones_stay():
    for epoch in range(20):
        (drawn,) = draw_captions([image("a")], 3, 0, epoch)
        assert len(set(drawn.texts)) == 3
        assert list(drawn.texts) == sorted(drawn.texts)
        assert drawn.truth.tolist() == [[True] * 3]
    for count in (5, 9):
        assert draw_captions([image("a")], count, 0, 0)[0].texts == image("a").texts
    for epoch in range(10):
        (drawn,) = draw_captions([image("a", captions=2, false=2)], 1, 0, epoch)
        assert drawn.texts[1:] == ("a f0", "a f1")
        assert drawn.true_ids == (frozenset({"a t0", "a t1"}),)
        assert drawn.truth.tolist() == [[True, False, False]]


def test_it_depends_on_seed_epoch_and_group_alone():
    groups = [image(key) for key in "abcdefgh"]

    def last(seed: int, epoch: int) -> tuple[str, ...]:
        return tuple(group.texts[0][-1] for group in draw_captions(groups, 1, seed, epoch))

    assert last(0, 0) == last(0, 0)
    assert len({last(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert len(set(last(0, 0))) > 1
    alone = [draw_captions([group], 1, 0, 0)[0].texts for group in groups]
    assert alone == [group.texts for group in draw_captions(groups, 1, 0, 0)]


def test_a_pair_of_scenes_stays_a_pair_and_its_columns_keep_their_image():
    group, seen = pair("p"), set()
    for epoch in range(40):
        (drawn,) = draw_captions([group], 1, 0, epoch)
        assert drawn.image_ids == group.image_ids
        assert drawn.truth.tolist() == [[True, False], [False, True]]
        assert drawn.texts[0] in group.texts[:2]
        assert drawn.texts[1] in group.texts[2:]
        seen.add(drawn.texts)
    assert len(seen) == 4
    group = pair("p")
    marked = replace(group, same_group=torch.tensor([[True, False, True, False]] * 2))
    (drawn,) = draw_captions([marked], 1, 0, 0)
    for j, text in enumerate(drawn.texts):
        assert drawn.same_group[0, j] == (group.texts.index(text) % 2 == 0)


def test_a_caption_that_was_not_drawn_is_not_made_a_negative():
    """Their ids are not their words, so only the undrawn group knows that it is true."""
    texts = ("a dog chases a cat", "a cat chases a dog")
    truth, ids = torch.ones(1, 2, dtype=torch.bool), ("i0", "i1")
    group = Group("a", ("image",), ids, texts, truth, (frozenset(ids),))
    negatives = CaptionNegatives(Rewriter([SwapNouns()]))
    drawn = draw_captions([group], 1, 0, 0)
    (with_knowledge,) = negatives.added(drawn, 0, 0, [group])
    assert len(with_knowledge.texts) == 1
    (without,) = negatives.added(drawn, 0, 0)
    assert len(without.texts) == 2
