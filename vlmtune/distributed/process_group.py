"""The processes of a run as one object: sums, gathers with exact gradients, and shared failures.

In: a value of this rank. Out: the sum, the rows or the list over all ranks.
Never: a choice of what to compute where; callers ask for their `slice` of the work.
A training step exchanges, in this order: sizes of the batches (`training.shard_layout`), embeddings
or scores (`training.score_shards`), sums within a loss (`objectives`), losses with the check of
scores (`training.finite`), DDP's sum of gradients, and the check of gradients (`training`). An
evaluation exchanges, in this order: digests, features and scores (`evaluation.scorer`), and the
failure of a benchmark on any rank (`evaluation.suite`).

A loss over the batch of all ranks is cut into parts, one on each rank, that add up to it. Forward,
`ProcessGroup` adds or concatenates; backward, it adds the gradients of all parts for each rank. So
each rank's weights receive their part of the exact gradient of the whole loss.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlmtune.errors import UserError
from vlmtune.types import PooledTokens, Rows, Tokens

T = TypeVar("T")


class ProcessGroup:
    """The processes of `torch.distributed`, or this process alone.

    Every rank must make the same calls in the same order. A single process needs no
    `torch.distributed`: sums and gathers then return what they get.

    Args:
        alone: Whether this process ignores all others.

    Example:
        >>> group = ProcessGroup()
        >>> group.size, group.sum(torch.tensor(3)), group.objects("a")
        (1, tensor(3), ['a'])
    """

    def __init__(self, alone: bool = False) -> None:
        self.alone = alone

    @property
    def rank(self) -> int:
        """Number of this process."""
        return dist.get_rank() if self._connected else 0

    @property
    def size(self) -> int:
        """W, the number of processes."""
        return dist.get_world_size() if self._connected else 1

    @property
    def _connected(self) -> bool:
        return not self.alone and dist.is_available() and dist.is_initialized()

    def slice(self, n: int) -> slice:
        """Returns this rank's contiguous part of n items; parts differ by at most one item.

        Example:
            >>> ProcessGroup().slice(5)
            slice(0, 5, None)
        """
        start = n * self.rank // self.size
        stop = n * (self.rank + 1) // self.size
        return slice(start, stop)

    def sum(self, value: Any) -> Any:
        """Adds a tensor over ranks; its gradient is the sum of the gradients of all ranks."""
        return value if self.size == 1 else _Sum.apply(value)

    def gather(self, value: Any, sizes: Sequence[int] = ()) -> Any:
        """Concatenates rows over ranks, in rank order; ranks may have different numbers of rows.

        Args:
            value: A tensor of at least one dimension, or `Rows`, whose tokens are padded to the
                longest of all ranks.
            sizes: The numbers of rows of all ranks. Where they are not known, ranks exchange them,
                and each waits for its device to read them.
        """
        if self.size == 1:
            return value
        if isinstance(value, PooledTokens):
            pooled = self.gather(value.pooled, sizes)
            tokens = self.gather(value.tokens, sizes)
            return PooledTokens(pooled, tokens)
        if isinstance(value, Tokens):
            # Each rank pads to its longest caption. Rows of one tensor need one length.
            lengths = self._sizes(value.mask.shape[1], value.device)
            value = value.padded(max(lengths))
        if isinstance(value, Rows):
            return value.map(lambda tensor: self.gather(tensor, sizes))
        if value.dtype == torch.bool:
            # Not every backend of torch.distributed can send booleans.
            numbers = self.gather(value.to(torch.uint8), sizes)
            return numbers.to(torch.bool)
        sizes = sizes or self._sizes(len(value), value.device)
        return _Gather.apply(value, sizes, self.rank)

    def objects(self, value: Any) -> list[Any]:
        """Returns any picklable value of each rank, in rank order."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def run(self, compute: Callable[[], T]) -> list[T]:
        """Calls `compute` on every rank and returns what all ranks returned, in rank order.

        If it fails on one rank, every rank raises, so none waits for ever.

        Raises:
            UserError: `compute` failed on another rank. This rank's own error is raised as it is.

        Example:
            >>> ProcessGroup().run(lambda: "features")
            ['features']
        """
        if self.size == 1:
            return [compute()]
        failure: Exception | None = None
        outcome: tuple[Any, str | None]
        try:
            outcome = (compute(), None)
        except Exception as error:
            failure = error
            message = f"{type(error).__name__}: {error}"
            outcome = (None, " ".join(message.split()))
        # A rank that failed takes part in the exchange, too: the others would wait for it.
        outcomes = self.objects(outcome)
        if failure is not None:
            raise failure
        for rank, (_, reason) in enumerate(outcomes):
            if reason is not None:
                raise UserError(
                    f"expected a result of rank {rank}, got {reason}: read the message of that rank"
                )
        return [result for result, _ in outcomes]

    def _sizes(self, rows: int, device: torch.device) -> list[int]:
        count = torch.tensor([rows], device=device)
        counts = [torch.zeros_like(count) for _ in range(self.size)]
        dist.all_gather(counts, count)
        return torch.cat(counts).tolist()


class _Sum(torch.autograd.Function):
    """y on each rank is the sum of all x; so dx is the sum of all dy."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        return _all_reduce(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return _all_reduce(gradients[0])


class _Gather(torch.autograd.Function):
    """y on each rank is all x, one after another; so dx is its rows of the sum of all dy."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
        ctx.sizes = sizes
        ctx.rank = rank
        # all_gather takes one shape from all ranks, so every rank sends the largest number of rows.
        padded = value.new_zeros(max(sizes), *value.shape[1:])
        padded[: len(value)] = value
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        # Each rank gets one part of the sum, and all parts have the same number of rows. So only
        # half of the bytes travel that a sum of all rows on every rank would take.
        rows = gradient.to(_wide(gradient)).split(ctx.sizes)
        parts = pad_sequence(list(rows), batch_first=True)
        total = torch.empty_like(parts[0])
        dist.reduce_scatter_tensor(total, parts.flatten(0, 1))
        of_rank = total[: ctx.sizes[ctx.rank]]
        return of_rank.to(gradient.dtype), None, None


def _all_reduce(value: Tensor) -> Tensor:
    total = value.detach().to(_wide(value), copy=True).contiguous()
    dist.all_reduce(total)
    return total.to(value.dtype)


def _wide(value: Tensor) -> torch.dtype:
    """Half precision is added in single precision: W terms would round W times."""
    half = value.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if half else value.dtype
