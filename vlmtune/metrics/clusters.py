"""Which items hang together because they share an image, so that intervals resample them together.

Two items with an image in common are right or wrong together more often than two without, and an
interval that takes them for independent is too narrow.
"""

import torch
from jaxtyping import Int
from torch import Tensor


def connected(members: Int[Tensor, "n k"]) -> Int[Tensor, "n"]:
    """Numbers the connected components of n items, each with k members (numbers of its images).

    Items that share a member, directly or through others, get the same number; the numbers count
    from 0 in the order in which the components appear.

    Example:
        >>> connected(torch.tensor([[0, 1], [4, 5], [2, 1], [2, 3]])).tolist()
        [0, 1, 0, 0]
    """
    if not members.numel():
        return torch.zeros(len(members), dtype=torch.int64)
    parent = list(range(int(members.max()) + 1))

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    rows = members.tolist()
    for first, *others in rows:
        for other in others:
            parent[root(other)] = root(first)
    roots = [root(row[0]) for row in rows]
    number = {member: i for i, member in enumerate(dict.fromkeys(roots))}
    return torch.tensor([number[member] for member in roots])
