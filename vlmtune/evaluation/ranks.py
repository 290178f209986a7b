"""Work that is split over the ranks of a process group, and failures that reach all of them."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from vlmtune.errors import UserError

T = TypeVar("T")


def share(n: int, rank: int, ranks: int) -> slice:
    """The contiguous part of n things that is one rank's; parts differ by at most one thing.

    Example:
        >>> [share(5, rank, 2) for rank in range(2)]
        [slice(0, 2, None), slice(2, 5, None)]
    """
    return slice(n * rank // ranks, n * (rank + 1) // ranks)


def on_all_ranks(compute: Callable[[int, int], T]) -> list[T]:
    """Calls `compute(rank, ranks)` on every rank; each gets what all returned, in order of rank.

    Without a process group there is one rank.

    Raises:
        UserError: `compute` failed on another rank. (What it raised on this one is raised as is.)

    Example:
        >>> on_all_ranks(lambda rank, ranks: (rank, ranks))
        [(0, 1)]
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [compute(0, 1)]
    failure: Exception | None = None
    try:
        mine: Any = (compute(dist.get_rank(), dist.get_world_size()), None)
    except Exception as error:  # told to the others: they would wait for this rank for ever
        mine, failure = (None, " ".join(f"{type(error).__name__}: {error}".split())), error
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    if failure is not None:
        raise failure
    for rank, (_, reason) in enumerate(parts):
        if reason is not None:
            raise UserError(f"expected scores of rank {rank}, got {reason}: see its own message")
    return [part for part, _ in parts]
