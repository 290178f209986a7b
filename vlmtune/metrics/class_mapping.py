"""Predictions over one set of classes, judged by another that some of them map to."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlmtune.errors import UserError


def class_of_id(ids: Mapping[str, Sequence[int]], n: int) -> Int[Tensor, "n"]:
    """For each of n predicted ids the class it stands for, -1 where it stands for none.

    Classes are numbered in the order of their sorted names. Of classes that share an id the last
    has it, as with a dictionary that is filled class by class; one without an id of its own can
    then never be right (PUG: ImageNet, "Shirt": its only id, 841, goes to "Sweatshirt").

    Args:
        ids: The ids of each class.
        n: How many ids there are.

    Raises:
        UserError: An id is not between 0 and n - 1.

    Example:
        >>> class_of_id({"Wolf": [1, 2], "Cat": [0]}, 4).tolist()
        [0, 1, 1, -1]
    """
    classes = torch.full((n,), -1)
    for number, name in enumerate(sorted(ids)):
        for i in ids[name]:
            if not 0 <= i < n:
                raise UserError(f"expected ids from 0 to {n - 1}, got {i} for {name!r}: correct it")
            classes[i] = number
    return classes


def mapped_hits(
    predicted: Int[Tensor, "n"], labels: Int[Tensor, "n"], classes: Int[Tensor, "m"]
) -> Bool[Tensor, "n"]:
    """Whether the predicted id stands for the true class.

    Args:
        predicted: The predicted one of m ids, for n items.
        labels: The true class of each item.
        classes: What `class_of_id` says.

    Example:
        >>> mapped_hits(torch.tensor([3, 1]), torch.tensor([0, 1]), torch.tensor([0, 1, 1, -1]))
        tensor([False,  True])
    """
    return classes[predicted] == labels
