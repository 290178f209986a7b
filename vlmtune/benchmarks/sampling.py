"""Fewer items than a file has, for trials: which ones `limit` and `seed` leave."""

from collections.abc import Sequence

import torch

from vlmtune.errors import UserError


def check_limit(limit: int | None) -> None:
    """Raises `UserError` where a limit is below 1."""
    if limit is not None and limit < 1:
        raise UserError(f"expected a limit of at least 1, got {limit}: leave it out for all")


def sample(groups: Sequence[str], limit: int | None, seed: int | None) -> list[int]:
    """Positions of at most `limit` items of each group, in ascending order.

    Args:
        groups: The group of each item.
        limit: How many of each group; None for all.
        seed: Draws them at random with this seed; None takes the first ones.

    Example:
        >>> sample(["a", "b", "a", "a", "b"], limit=2, seed=None)
        [0, 1, 2, 4]
        >>> len(sample(["a"] * 9, limit=3, seed=0))
        3
    """
    if limit is None:
        return list(range(len(groups)))
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    kept: list[int] = []
    for own in members.values():
        order = range(len(own))
        if seed is not None:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(own), generator=generator).tolist()
        kept += [own[i] for i in order[:limit]]
    return sorted(kept)
