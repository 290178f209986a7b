"""Random changes of training images (`data.augmentation` of a fit).

In: groups with decoded images. Out: the same groups with changed images. Never: a stored feature.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import nn

from vlmtune.errors import UserError
from vlmtune.types import Group


def augmented(
    groups: Sequence[Group], augmentation: nn.Module, seed: int, epoch: int
) -> list[Group]:
    """Returns each group with `augmentation` applied to its images, before preprocessing.

    What the augmentation draws from PyTorch's generator is a function of seed, epoch and image id,
    so a resumed epoch has the same images, whatever the number of workers. Transforms of
    `torchvision.transforms.v2` draw from it.

    A flip exchanges left and right, a change of hue changes colours, and a tight crop cuts objects
    off: true captions become false.

    Raises:
        UserError: The augmentation returns something other than a PIL image.

    Example:
        >>> from torchvision.transforms.v2 import RandomResizedCrop
        >>> truth, ids = torch.ones(1, 1, dtype=torch.bool), ("t",)
        >>> image = Image.new("RGB", (64, 48))
        >>> group = Group("g", ("i",), ids, ids, truth, (frozenset(ids),), images=(image,))
        >>> augmented([group], RandomResizedCrop(32, scale=(0.9, 1.0)), 0, 0)[0].images[0].size
        (32, 32)
    """
    changed = []
    for group in groups:
        images = []
        for name, image in zip(group.image_ids, group.images or (), strict=True):
            images.append(_changed(image, augmentation, f"{seed}/{epoch}/{name}"))
        changed.append(replace(group, images=tuple(images)))
    return changed


def _changed(image: Any, augmentation: nn.Module, key: str) -> Any:
    digest = hashlib.sha256(key.encode()).digest()
    image_seed = int.from_bytes(digest[:8], "big")  # 64 bits, as a seed of torch has
    # The state outside stays as it is: dropout draws from the same generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(image_seed)
        changed = augmentation(image)
    if not isinstance(changed, Image.Image):
        raise UserError(
            f"expected a PIL image from {type(augmentation).__name__}, got "
            f"{type(changed).__name__}: choose an augmentation that keeps the kind of image"
        )
    return changed
