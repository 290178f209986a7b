import pytest
import torch

from vlmtune.data.collate import collate
from vlmtune.data.hard_negatives import HardNegatives, with_hard_negatives
from vlmtune.types import Group

# Two scenes; a caption of each, one of both, and one of neither.
TRUTH = torch.tensor([[True, False, True, False], [False, True, True, False]])
SCENES = Group(
    "g",
    ("left", "right"),
    ("l", "r", "both", "neither"),
    ("L", "R", "Both", "Neither"),
    TRUTH,
    (frozenset({"l", "both"}), frozenset({"r", "both"})),
    images=("left pixels", "right pixels"),
    same_group=torch.tensor([[True, True, True, False], [True, True, True, True]]),
)


def kept(which: HardNegatives, epoch: int = 0) -> Group:
    (group,) = with_hard_negatives([SCENES], which, 0, epoch)
    return group


def test_all_changes_nothing_and_images_leaves_out_what_is_false_of_every_image():
    assert kept("all") is SCENES
    group = kept("images")
    assert (group.image_ids, group.text_ids) == (SCENES.image_ids, ("l", "r", "both"))
    assert group.truth.tolist() == TRUTH[:, :3].tolist()


@pytest.mark.parametrize("epoch", range(6))
def test_captions_makes_negatives_of_the_other_images_texts_and_none_leaves_them_out(epoch):
    group = kept("captions", epoch)
    row = SCENES.image_ids.index(*group.image_ids)
    assert group.texts == SCENES.texts
    assert group.truth.tolist() == [TRUTH[row].tolist()]
    assert group.images == (f"{group.image_ids[0]} pixels",)
    assert group.true_ids == (SCENES.true_ids[row],)
    assert torch.equal(group.same_group, SCENES.same_group[row : row + 1])
    group = kept("none", epoch)  # the same image, with its true texts alone
    assert group.text_ids == {"left": ("l", "both"), "right": ("r", "both")}[group.image_ids[0]]
    assert group.truth.all()


def test_the_image_is_drawn_by_epoch_and_the_same_for_captions_and_none():
    drawn = [kept("none", epoch).image_ids for epoch in range(200)]
    assert drawn == [kept("captions", epoch).image_ids for epoch in range(200)]
    assert 70 <= drawn.count(("left",)) <= 130  # 100 +- 4 standard deviations


def test_a_text_that_was_left_out_is_no_column_and_truth_across_groups_stays():
    other = Group(
        "h", ("both",), ("l", "r"), ("L", "R"), TRUTH[:1, :1].expand(1, 2), (frozenset("lr"),)
    )
    batch = collate(with_hard_negatives([SCENES, other], "none", 0, 0))
    assert "Neither" not in batch.texts
    assert batch.targets.truth[0, batch.texts.index("L")] == (batch.image_ids[0] == "left")
