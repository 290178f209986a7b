"""From predictions over one set of classes to another set that some of them map to.

In: the ids of each class. Out: the class of each id.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def class_of_id(ids: Mapping[str, Sequence[int]], n: int) -> Int[Tensor, "n"]:
    """The class of each of n predicted ids, from the ids of each class; -1 for ids without a class.

    Classes are numbered in the order of their sorted names. If classes share an id, the last one
    gets it, as in a dictionary that is filled class by class. A class without an id of its own can
    then never be right (PUG: ImageNet, "Shirt": its only id, 841, goes to "Sweatshirt").

    Example:
        >>> class_of_id({"Wolf": [1, 2], "Cat": [0]}, 4).tolist()
        [0, 1, 1, -1]
    """
    classes = torch.full((n,), -1)
    for number, name in enumerate(sorted(ids)):
        for i in ids[name]:
            classes[i] = number
    return classes
