from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.v2 import ColorJitter, PILToTensor, RandomResizedCrop
from torchvision.transforms.v2.functional import pil_to_tensor

from tests.data.conftest import Numbered
from tests.refusals import refused
from vlmtune.data.augmentation import augmented
from vlmtune.data.datamodule import ShardDataModule
from vlmtune.data.loader import EpochLoader, GroupChanges
from vlmtune.data.shards import ShardSet
from vlmtune.data.stream import GroupStream
from vlmtune.types import Group

CROP = RandomResizedCrop(16, scale=(0.2, 1.0))


def noise(seed: int) -> Image.Image:
    pixels = torch.randint(256, (24, 24, 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.byte().numpy())


def group(*names: str) -> Group:
    truth = torch.eye(len(names), dtype=torch.bool)
    images = tuple(noise(0) for _ in names)
    true = tuple(frozenset({name}) for name in names)
    return Group("g", names, names, names, truth, true, images=images)


def values(image: Image.Image) -> torch.Tensor:
    return pil_to_tensor(image).float()


def pixels(group: Group) -> list[list[int]]:
    assert group.images is not None
    return [pil_to_tensor(image).flatten().tolist() for image in group.images]


def test_an_image_changes_with_seed_epoch_and_id_alone():
    (drawn,) = augmented([group("a", "b")], CROP, 0, 0)
    assert [image.size for image in drawn.images] == [(16, 16)] * 2
    a, b = pixels(drawn)
    assert a != b  # the same picture under two ids
    torch.manual_seed(123)
    assert pixels(augmented([group("b"), group("a")], CROP, 0, 0)[1]) == [a]
    for seed, epoch in ((1, 0), (0, 1)):
        assert pixels(augmented([group("a")], CROP, seed, epoch)[0]) != [a]


def test_it_leaves_the_generator_of_the_training_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    augmented([group("a")], CROP, 0, 0)
    assert torch.rand(3).equal(expected)


def test_what_is_no_image_is_refused():
    with refused("a PIL image from PILToTensor, got Tensor"):
        augmented([group("a")], PILToTensor(), 0, 0)


@pytest.fixture
def loader(tmp_path: Path):
    Numbered(6, 1000, "r").build(tmp_path / "shards", progress=False)

    def make(workers: int = 0, done: int = 0, augmentation: nn.Module | None = None) -> EpochLoader:
        stream = GroupStream((ShardSet(str(tmp_path / "shards")),), 2)
        changes = GroupChanges(augmentation=augmentation)
        return EpochLoader(stream, values, lambda: (3, 2 * done), 0, 1, workers, changes)

    return make


def shown(loader: EpochLoader) -> dict[str, torch.Tensor]:
    return {
        name: image
        for batch in loader
        for name, image in zip(batch.image_ids, batch.pixels, strict=True)
    }


@pytest.mark.filterwarnings("ignore:.*worker processes in total.*")
def test_a_resumed_epoch_has_the_same_images_in_any_number_of_workers(loader):
    jitter = ColorJitter(brightness=0.9)
    whole = shown(loader(augmentation=jitter))
    plain = shown(loader())
    assert whole.keys() == plain.keys()
    same = sum(torch.equal(whole[name], plain[name]) for name in whole)
    assert same <= 2  # a factor near 1 changes no pixel
    for workers in (0, 2):
        rest = shown(loader(workers, 1, jitter))
        assert 0 < len(rest) < len(whole)
        assert all(torch.equal(image, whole[name]) for name, image in rest.items())


def test_another_augmentation_is_another_order_and_stored_images_are_refused(make_set):
    def module(augmentation: nn.Module | None) -> ShardDataModule:
        return ShardDataModule([make_set(4)], 2, augmentation=augmentation)

    with refused("no data.augmentation, .* stored"):
        module(CROP).use_stored_images()
    state = module(CROP).changes.state()
    assert state["augmentation"] == repr(CROP)
    assert module(None).changes.state()["augmentation"] is None
