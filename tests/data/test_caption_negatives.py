from dataclasses import replace

import pytest
import torch

from data_builders.shard_builder import images_group
from vlmtune.config import instantiate
from vlmtune.data.caption_negatives import CaptionNegatives
from vlmtune.data.collate import collate
from vlmtune.errors import UserError
from vlmtune.language.caption_edits import SwapAdjectives, SwapNouns
from vlmtune.language.rewriting import Rewriter
from vlmtune.types import Group


def swapping(count: int = 1) -> CaptionNegatives:
    return CaptionNegatives(Rewriter([SwapNouns(), SwapAdjectives()]), count)


def one(key: str, *texts: str, true_ids: set[str] | None = None, ids: str = "") -> Group:
    """An image with captions, whose ids are the captions themselves unless `ids` is given."""
    text_ids = tuple(f"{ids}{key}-{j}" if ids else text for j, text in enumerate(texts))
    return Group(
        key=key,
        image_ids=(f"image-{key}",),
        text_ids=text_ids,
        texts=texts,
        truth=torch.ones(1, len(texts), dtype=torch.bool),
        true_ids=(frozenset(text_ids) | (true_ids or set()),),
    )


def test_each_caption_gets_false_texts_of_its_own():
    groups = [one("a", "a red dog chases a black cat", "a dog"), one("b", "snow")]
    a, b = swapping(count=2).added(groups, seed=0, epoch=0)
    assert set(a.texts[2:]) == {"a black dog chases a red cat", "a red cat chases a black dog"}
    assert a.truth.tolist() == [[True, True, False, False]]
    assert b.texts == ("snow",)
    batch = collate([a, b])
    assert batch.targets.truth.int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert batch.targets.same_group.int().tolist() == [[1, 1, 1, 1, 0], [0, 0, 0, 0, 1]]
    assert batch.targets.known.equal(batch.targets.same_group)
    assert groups[0].texts == ("a red dog chases a black cat", "a dog")
    (twice,) = swapping().added([one("c", "a dog chases a cat", "A dog chases a cat.")], 0, 0)
    assert len(twice.texts) == 3  # and not the same words again


def test_they_depend_on_seed_epoch_and_group_alone():
    caption = "a small red dog chases a big black cat on green grass"
    groups = [one(key, caption) for key in "abcdefgh"]
    made = swapping()

    def texts(seed: int, epoch: int) -> list[str]:
        return [group.texts[1] for group in made.added(groups, seed, epoch)]

    assert texts(0, 0) == texts(0, 0)
    assert len({tuple(texts(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert len(set(texts(0, 0))) > 1
    alone = [made.added([group], 0, 0)[0].texts[1] for group in groups]
    assert alone == texts(0, 0)


@pytest.mark.parametrize("ids", ["", "id-"])
def test_what_is_true_is_never_a_negative(ids):
    caption, swapped = "a dog chases a cat", "A cat  chases a dog."
    made = swapping()
    # Known by the group's own captions.
    (group,) = made.added([one("a", caption, swapped, ids=ids)], 0, 0)
    assert len(group.texts) == 2
    # Known by an id whose caption is in the batch.
    other = one("b", swapped, ids=ids)
    first, second = made.added(
        [one("a", caption, true_ids={*other.text_ids}, ids=ids), other], 0, 0
    )
    assert len(first.texts) == 1
    assert len(second.texts) == 2
    # Known by an id that is the caption.
    (group,) = made.added([one("a", caption, true_ids={swapped}, ids=ids)], 0, 0)
    assert len(group.texts) == 1


@pytest.mark.parametrize("ids", ["", "id-"])
def test_the_true_caption_of_another_image_is_one_column(ids):
    groups = [one("a", "a dog chases a cat", ids=ids), one("b", "A cat chases a dog.", ids=ids)]
    batch = collate(swapping().added(groups, 0, 0))
    assert batch.texts == ("a dog chases a cat", "A cat chases a dog.")
    assert batch.targets.truth.int().tolist() == [[1, 0], [0, 1]]
    assert batch.targets.same_group.int().tolist() == [[1, 1], [1, 1]]


def test_across_ranks_it_is_known_by_its_words():
    ids = "id-"
    mine = swapping().added([one("a", "a dog chases a cat", ids=ids)], 0, 0)
    theirs = swapping().added([one("b", "a cat chases a dog", ids=ids)], 0, 0)
    batch = collate([*mine, *theirs])  # as if the ranks' batches were one
    at = {name: column for column, name in enumerate(batch.text_ids)}
    truth = batch.targets.truth
    for name in ("a cat chases a dog", "a dog chases a cat"):
        assert truth[:, at[name]].tolist() == [name.startswith("a dog"), name.startswith("a cat")]


def test_in_a_pair_a_negative_belongs_to_the_image_of_its_caption():
    texts = ("a red cube near a blue dog", "a blue cube near a red dog")
    pair = images_group("p", "ij", texts, [{text} for text in texts], exhaustive=True)
    (group,) = CaptionNegatives(Rewriter([SwapNouns()])).added([pair], 0, 0)
    assert group.same_group is not None
    assert group.texts[2:] == ("a red dog near a blue cube", "a blue dog near a red cube")
    targets = collate([group]).targets
    assert targets.same_group.int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 1]]
    assert targets.truth.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    # Swapped adjectives give the other caption, which is there already.
    (group,) = CaptionNegatives(Rewriter([SwapAdjectives()])).added([pair], 0, 0)
    assert group.texts == texts


def test_a_false_text_of_the_record_is_not_rewritten():
    group = one("a", "a dog chases a cat")
    group = replace(
        group,
        texts=(*group.texts, "a man rides a horse"),
        text_ids=(*group.text_ids, "x"),
        truth=torch.tensor([[True, False]]),
    )
    (added,) = swapping().added([group], 0, 0)
    assert added.texts == ("a dog chases a cat", "a man rides a horse", "a cat chases a dog")


def test_a_count_of_none_is_refused():
    spec = CaptionNegatives(Rewriter([SwapNouns()])).spec()
    spec["init_args"]["count"] = 0
    with pytest.raises(UserError, match=r"as count of .*, got '0'"):
        instantiate(spec, CaptionNegatives)
