"""Where a rank's images and texts are in the batch of all ranks, and what is true there.

In: the batch of each rank. Out: its `ShardLayout`. Never: features, scores or the N x M matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.types import Batch, Targets

Pairs = list[tuple[int, int]]
Facts = tuple[Pairs, Pairs, Pairs | None, tuple[bool, ...]]
"""Of one rank: true pairs, pairs within a group, mined pairs, and which images are exhaustive."""


@dataclass(frozen=True)
class ShardLayout:
    """Where a rank's n images and m texts are among the N and M of all ranks.

    Attributes:
        texts: Rows of the rank's batch whose texts are columns of this rank.
        row_start: Position of its first image.
        column_start: Position of its first text.
        rows: Targets of its images against all texts.
        columns: Targets of all images against its texts.
    """

    texts: Int[Tensor, "m"]
    row_start: int
    column_start: int
    rows: Targets
    columns: Targets


def shard_layout(batch: Batch, group: ProcessGroup, merged: bool) -> ShardLayout:
    """Returns the layout of this rank's batch among the batches of all ranks.

    The targets are those that `collate` gives for the groups of all ranks in one batch.

    Args:
        batch: The rank's batch.
        group: All ranks.
        merged: Whether a text of several ranks is one column, which belongs to the first of them.
            Otherwise each rank has its own column for it.
    """
    if group.size == 1:
        everything = torch.arange(len(batch.texts), device=batch.targets.truth.device)
        return ShardLayout(everything, 0, 0, batch.targets, batch.targets)
    assert len(batch.text_ids) == len(batch.texts)
    gathered = group.objects((batch.text_ids, len(batch.image_ids)))
    images = [count for _, count in gathered]
    row_start = sum(images[: group.rank])
    columns, starts = _columns([text_ids for text_ids, _ in gathered], merged)
    start, stop = starts[group.rank], starts[group.rank + 1]
    column_of = [columns[name][0] if merged else start + j for j, name in enumerate(batch.text_ids)]
    true: Pairs = [
        (row_start + i, column)
        for i, names in enumerate(batch.true_ids)
        for name in names
        for column in columns.get(name, ())
    ]
    same_group, mined = (
        None
        if part is None
        else [(row_start + i, column_of[j]) for i, j in part.nonzero().tolist()]
        for part in (batch.targets.same_group, batch.targets.mined_negatives)
    )
    # Only the true entries travel: the whole matrix is on no rank.
    facts = group.objects((true, same_group, mined, batch.exhaustive))
    rows = _targets([facts[group.rank]], row_start, images[group.rank], 0, starts[-1])
    device = batch.targets.truth.device
    return ShardLayout(
        texts=torch.tensor(
            [j for j, column in enumerate(column_of) if start <= column < stop],
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
    """Columns of each text id, and the first column of each rank, with the total at the end."""
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
    true_pairs, group_pairs, mined_pairs, flags = zip(*facts, strict=True)
    truth, same_group = (
        _dense([*chain(*pairs)], corner, shape) for pairs in (true_pairs, group_pairs)
    )
    mined = None if None in mined_pairs else _dense([*chain(*mined_pairs)], corner, shape)
    exhaustive = torch.tensor([*chain(*flags)], dtype=torch.bool)
    return Targets(truth, same_group | exhaustive[:, None], same_group, mined)


def _dense(
    pairs: Pairs, corner: tuple[int, int], shape: tuple[int, int]
) -> Bool[Tensor, "rows columns"]:
    """Returns a matrix that is True at the pairs inside the rectangle at `corner`."""
    at = torch.tensor(pairs, dtype=torch.int64).view(-1, 2) - torch.tensor(corner)
    at = at[(at[:, 1] >= 0) & (at[:, 1] < shape[1])]
    dense = torch.zeros(shape, dtype=torch.bool)
    dense[at[:, 0], at[:, 1]] = True
    return dense
