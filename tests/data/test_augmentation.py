import torch
from PIL import Image
from torchvision.transforms.v2 import PILToTensor, RandomResizedCrop
from torchvision.transforms.v2.functional import pil_to_tensor

from data_builders.shard_builder import images_group
from tests.refusals import refused
from vlmtune.data.augmentation import augmented
from vlmtune.types import Group

CROP = RandomResizedCrop(16, scale=(0.2, 1.0))


def noise(seed: int) -> Image.Image:
    pixels = torch.randint(256, (24, 24, 3), generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(pixels.byte().numpy())


def group(*names: str) -> Group:
    images = tuple(noise(0) for _ in names)
    return images_group("g", names, names, [{name} for name in names], pictures=images)


def pixels(group: Group) -> list[list[int]]:
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
    # The generator of the training stays as it was.
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    augmented([group("a")], CROP, 0, 0)
    assert torch.rand(3).equal(expected)


def test_what_is_no_image_is_refused():
    with refused("a PIL image from PILToTensor, got Tensor"):
        augmented([group("a")], PILToTensor(), 0, 0)
