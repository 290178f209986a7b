import pytest
import torch

from data_builders.shard_builder import ShardBuilder
from tests.data.conftest import png
from vlmtune.data.collate import collate
from vlmtune.data.datamodule import EpochLoader, ShardDataModule
from vlmtune.data.hard_negatives import HardNegatives, with_hard_negatives
from vlmtune.data.shards import ShardSet
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
def test_captions_makes_negatives_of_the_other_images_texts(epoch):
    group = kept("captions", epoch)
    row = SCENES.image_ids.index(*group.image_ids)
    assert group.texts == SCENES.texts
    assert group.truth.tolist() == [TRUTH[row].tolist()]
    assert group.images == (f"{group.image_ids[0]} pixels",)
    assert group.true_ids == (SCENES.true_ids[row],)
    assert torch.equal(group.same_group, SCENES.same_group[row : row + 1])


@pytest.mark.parametrize("epoch", range(6))
def test_none_is_one_image_and_its_true_texts(epoch):
    group = kept("none", epoch)
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


class Pairs(ShardBuilder):
    """6 records of two images, with one true text each, and a text that is false of both."""

    def records(self):
        for n in range(6):
            ids = (f"a{n}", f"b{n}", f"false{n}")
            true = tuple(frozenset({name}) for name in ids[:2])
            images = (f"image a{n}", f"image b{n}")
            truth = torch.eye(2, 3, dtype=torch.bool)
            yield Group(f"{n}", images, ids, ids, truth, true), [png(n), png(100 + n)]


def test_the_datamodule_passes_it_to_training(tmp_path):
    Pairs().build(tmp_path / "shards", progress=False)

    def loader(which: HardNegatives) -> EpochLoader:
        sets = [ShardSet(str(tmp_path / "shards"))]
        module = ShardDataModule(sets, 3, hard_negatives=which)
        module.use_stored_images()
        return module.train_dataloader()

    shapes = {"all": (6, 9), "images": (6, 6), "captions": (3, 9), "none": (3, 3)}
    for which, shape in shapes.items():
        assert [batch.targets.truth.shape for batch in loader(which)] == [shape] * 2
    with pytest.warns(UserWarning, match="another hard_negatives"):
        loader("none").check_order(loader("all").order())
