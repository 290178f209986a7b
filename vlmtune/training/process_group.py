"""All ranks of a training run as one: exact sums and gathers, and what is true across ranks.

A loss over the batch of all ranks is cut into parts, one on each rank, that add up to it. Forward,
`ProcessGroup` adds or concatenates; backward, the gradients of all parts are added for each rank.
So what a rank's weights receive is its share of the exact gradient of the whole loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from vlmtune.types import Batch, Features, Targets

Pairs = list[tuple[int, int]]
Facts = tuple[Pairs, Pairs, Pairs | None, tuple[bool, ...]]
"""Of a rank: its true, own and mined pairs, and which of its images are exhaustive."""


class ProcessGroup:
    """The processes of `torch.distributed`, or this one alone where there are no others.

    Every rank must make the same calls in the same order.

    Args:
        alone: Whether this process stays by itself, whatever others there are.

    Attributes:
        rank: Number of this process.
        size: W, how many there are.

    Example:
        >>> ranks = ProcessGroup()
        >>> ranks.size, ranks.sum(torch.tensor(3))
        (1, tensor(3))
    """

    def __init__(self, alone: bool = False) -> None:
        together = not alone and dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1

    def sum(self, value: Any) -> Any:
        """Adds a tensor over ranks; its gradient is the sum of the gradients of all ranks."""
        return value if self.size == 1 else _Sum.apply(value)

    def gather(self, value: Any) -> Any:
        """Concatenates rows over ranks, in rank order; each rank may have another number of them.

        Args:
            value: A tensor of at least one dimension, or `Features`, whose token sequences are
                padded to the longest of all ranks.
        """
        if self.size == 1:
            return value
        if isinstance(value, Features):
            return self._gather_features(value)
        if value.dtype == torch.bool:  # not every process group can send these
            return self.gather(value.to(torch.uint8)).to(torch.bool)
        return _Gather.apply(value, self._sizes(len(value), value.device), self.rank)

    def objects(self, value: Any) -> list[Any]:
        """Returns any picklable value of each rank, in rank order."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def _sizes(self, rows: int, device: torch.device) -> list[int]:
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([rows], device=device))
        return torch.cat(sizes).tolist()

    def _gather_features(self, features: Features) -> Features:
        parts = (features.pooled, features.tokens, features.mask, features.ids)
        if features.tokens is not None:
            longest = max(self._sizes(features.tokens.shape[1], features.tokens.device))
            missing = longest - features.tokens.shape[1]
            parts = (
                features.pooled,
                pad(features.tokens, (0, 0, 0, missing)),
                None if features.mask is None else pad(features.mask, (0, missing)),
                None if features.ids is None else pad(features.ids, (0, missing)),
            )
        return Features(*(None if part is None else self.gather(part) for part in parts))


class _Sum(torch.autograd.Function):
    """y on each rank is the sum of all x; so dx is the sum of all dy."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        del ctx
        return _added(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return _added(gradients[0])


class _Gather(torch.autograd.Function):
    """y on each rank is all x, one after another; so dx is its rows of the sum of all dy."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, sizes: list[int], rank: int) -> Tensor:
        ctx.start, ctx.stop = sum(sizes[:rank]), sum(sizes[: rank + 1])
        padded = value.new_zeros(max(sizes), *value.shape[1:])
        padded[: len(value)] = value
        blocks = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(blocks, padded)
        return torch.cat([block[:size] for block, size in zip(blocks, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _added(gradients[0])[ctx.start : ctx.stop], None, None


def _added(value: Tensor) -> Tensor:
    # Half precision is added in single: W terms would round W times.
    half = value.dtype in (torch.float16, torch.bfloat16)
    total = value.detach().to(torch.float32 if half else value.dtype, copy=True).contiguous()
    dist.all_reduce(total)
    return total.to(value.dtype)


@dataclass(frozen=True)
class ShardLayout:
    """Where a rank's n images and m own texts are among the N and M of all ranks.

    Attributes:
        texts: Which texts of the rank's batch are its own columns.
        row_start: Position of its first image.
        column_start: Position of its first own text.
        rows: What is true of its images, among all texts.
        columns: What is true of its own texts, among all images.
    """

    texts: Int[Tensor, "m"]
    row_start: int
    column_start: int
    rows: Targets
    columns: Targets


def place(batch: Batch, ranks: ProcessGroup, merged: bool) -> ShardLayout:
    """Finds out what is true between a rank's batch and the batches of all other ranks.

    Truth is what `collate` would have found with the groups of all ranks in one batch.

    Args:
        batch: The rank's batch.
        ranks: All ranks.
        merged: Whether a text that several ranks have is one column, of the first rank that has
            it. Otherwise each has a column of its own.
    """
    if ranks.size == 1:
        everything = torch.arange(len(batch.texts), device=batch.targets.truth.device)
        return ShardLayout(everything, 0, 0, batch.targets, batch.targets)
    assert len(batch.text_ids) == len(batch.texts)
    gathered = ranks.objects((batch.text_ids, len(batch.image_ids)))
    images = [count for _, count in gathered]
    row_start = sum(images[: ranks.rank])
    columns, starts = _columns([text_ids for text_ids, _ in gathered], merged)
    start, stop = starts[ranks.rank], starts[ranks.rank + 1]
    mine = [
        columns[name][0] if merged else start + j for j, name in enumerate(batch.text_ids)
    ]  # column of each text of this rank
    true: Pairs = [
        (row_start + i, column)
        for i, names in enumerate(batch.true_ids)
        for name in names
        for column in columns.get(name, ())
    ]
    own, mined = (
        None if part is None else [(row_start + i, mine[j]) for i, j in part.nonzero().tolist()]
        for part in (batch.targets.same_group, batch.targets.mined_negatives)
    )
    # Only the true entries travel: the whole matrix is on no rank.
    facts = ranks.objects((true, own, mined, batch.exhaustive))
    rows = _targets([facts[ranks.rank]], row_start, images[ranks.rank], 0, starts[-1])
    device = batch.targets.truth.device
    return ShardLayout(
        texts=torch.tensor(
            [j for j, column in enumerate(mine) if start <= column < stop],
            dtype=torch.int64,
            device=device,
        ),
        row_start=row_start,
        column_start=start,
        rows=rows.to(device),
        columns=_targets(facts, 0, sum(images), start, stop - start).to(device),
    )


def _columns(
    text_ids: Sequence[tuple[str, ...]], merged: bool
) -> tuple[dict[str, list[int]], list[int]]:
    """Columns of each text id, and where the own columns of each rank begin (and all end)."""
    columns: dict[str, list[int]] = {}
    count, starts = 0, [0]
    for names in text_ids:
        for name in names:
            known = columns.setdefault(name, [])
            if not (merged and known):
                known.append(count)
                count += 1
        starts.append(count)
    return columns, starts


def _targets(
    facts: Sequence[Facts],
    row_start: int,
    rows: int,
    column_start: int,
    columns: int,
) -> Targets:
    corner, shape = (row_start, column_start), (rows, columns)
    trues, owns, mines, flags = zip(*facts, strict=True)
    truth, own = (_dense([*chain(*pairs)], corner, shape) for pairs in (trues, owns))
    mined = None if None in mines else _dense([*chain(*mines)], corner, shape)
    exhaustive = torch.tensor([*chain(*flags)], dtype=torch.bool)
    return Targets(truth, own | exhaustive[:, None], own, mined)


def _dense(
    pairs: Pairs, corner: tuple[int, int], shape: tuple[int, int]
) -> Bool[Tensor, "rows columns"]:
    """True at the pairs that lie right of `corner` and within `shape`."""
    at = torch.tensor(pairs, dtype=torch.int64).view(-1, 2) - torch.tensor(corner)
    at = at[(at[:, 1] >= 0) & (at[:, 1] < shape[1])]
    dense = torch.zeros(shape, dtype=torch.bool)
    dense[at[:, 0], at[:, 1]] = True
    return dense
