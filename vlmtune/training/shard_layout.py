"""Where a rank's images and texts are in the batch of all ranks, and what is true there.

In: the batch of each rank. Out: its `ShardLayout`. Never: features, scores or the N x M matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.types import Batch, Targets

Entries = list[list[int]]
"""Row and column of each True entry of a matrix."""


class RankTargets(NamedTuple):
    """The targets of one rank's batch, as they travel: the whole matrix is on no rank."""

    text_ids: tuple[str, ...]  # as in `Batch`, and so the next two
    true_ids: tuple[frozenset[str], ...]
    exhaustive: tuple[bool, ...]
    same_group: Entries  # with rows and columns counted in the rank's own batch
    mined_negatives: Entries | None  # likewise


class SparseTargets(NamedTuple):
    """The same with rows and columns counted over all ranks."""

    truth: Entries  # by the ids of texts, as a text of any rank may be true
    same_group: Entries
    mined_negatives: Entries | None
    exhaustive: tuple[bool, ...]


@dataclass(frozen=True)
class ShardLayout:
    """Where a rank's n images and m texts are among the N and M of all ranks."""

    texts: Int[Tensor, "m"]  # which texts of the rank's batch are columns of this rank
    row_start: int  # position of its first image
    column_start: int  # position of its first text
    row_targets: Targets  # of its images against all texts
    column_targets: Targets  # of all images against its texts
    text_columns: Int[Tensor, "t"]  # of each text of its batch, which may be another rank's column
    # How many images and how many columns each rank has; a single rank needs no numbers.
    image_counts: tuple[int, ...] = ()
    text_counts: tuple[int, ...] = ()


def shard_layout(batch: Batch, group: ProcessGroup, merged: bool) -> ShardLayout:
    """Returns the layout of this rank's batch among the batches of all ranks.

    The targets are those that `collate` gives for the groups of all ranks in one batch. If
    `merged`, a text of several ranks is one column, which belongs to the first of them; otherwise
    each rank has its own column for it.
    """
    device = batch.targets.truth.device
    if group.size == 1:
        texts = torch.arange(len(batch.texts), device=device)
        return ShardLayout(texts, 0, 0, batch.targets, batch.targets, texts)
    assert len(batch.text_ids) == len(batch.texts)
    # One exchange: each of them waits for all ranks, and for the device if NCCL sends it.
    by_rank = group.objects(_rank_targets(batch))
    image_counts = tuple(len(targets.true_ids) for targets in by_rank)
    row_starts = [0, *accumulate(image_counts)]
    columns_of, text_columns, column_starts = _columns(by_rank, merged)
    text_counts = tuple(stop - start for start, stop in pairwise(column_starts))
    # Ranks follow one another, so a rank's rows and columns are ranges among all.
    all_rows = range(row_starts[-1])
    all_columns = range(column_starts[-1])
    rows = range(row_starts[group.rank], row_starts[group.rank + 1])
    columns = range(column_starts[group.rank], column_starts[group.rank + 1])
    # Each rank numbers its own rows and texts; here they get their numbers among all.
    placed = []
    for rank, targets in enumerate(by_rank):
        placed.append(_placed(targets, row_starts[rank], text_columns[rank], columns_of))
    column_of = text_columns[group.rank]
    texts = [text for text, column in enumerate(column_of) if column in columns]
    return ShardLayout(
        texts=torch.tensor(texts, dtype=torch.int64, device=device),
        row_start=rows.start,
        column_start=columns.start,
        # Its rows are of this rank's images alone, its columns of the images of all ranks.
        row_targets=_targets([placed[group.rank]], rows, all_columns).to(device),
        column_targets=_targets(placed, all_rows, columns).to(device),
        text_columns=torch.tensor(column_of, dtype=torch.int64, device=device),
        image_counts=image_counts,
        text_counts=text_counts,
    )


def _columns(
    by_rank: Sequence[RankTargets], merged: bool
) -> tuple[dict[str, list[int]], list[list[int]], list[int]]:
    """Columns of each text id, the column of each text of each rank, and the rank's first one.

    The first columns end with the number of all.
    """
    columns_of: dict[str, list[int]] = {}
    text_columns = []
    count = 0
    starts = [0]
    for targets in by_rank:
        column_of = []
        for name in targets.text_ids:
            columns = columns_of.setdefault(name, [])
            # A text that an earlier rank has too is a column of that rank, if they are merged.
            if not (merged and columns):
                columns.append(count)
                count += 1
            column_of.append(columns[-1])
        text_columns.append(column_of)
        starts.append(count)
    return columns_of, text_columns, starts


def _rank_targets(batch: Batch) -> RankTargets:
    # The copy on the CPU: there is nothing to wait for.
    targets = batch.targets.on_cpu()
    same_group = targets.same_group.nonzero().tolist()
    mined_negatives = None
    if targets.mined_negatives is not None:
        mined_negatives = targets.mined_negatives.nonzero().tolist()
    return RankTargets(
        batch.text_ids, batch.true_ids, batch.exhaustive, same_group, mined_negatives
    )


def _placed(
    targets: RankTargets, row_start: int, column_of: list[int], columns_of: Mapping[str, list[int]]
) -> SparseTargets:
    """The targets of a rank's batch, with rows and columns counted over all ranks."""
    truth: Entries = []
    # A caption of another rank may be true too, so truth goes by id and not by position.
    for row, true_ids in enumerate(targets.true_ids, row_start):
        for name in true_ids:
            for column in columns_of.get(name, ()):
                truth.append([row, column])

    def placed(entries: Entries) -> Entries:
        return [[row_start + row, column_of[text]] for row, text in entries]

    mined_negatives = None
    if targets.mined_negatives is not None:
        mined_negatives = placed(targets.mined_negatives)
    return SparseTargets(truth, placed(targets.same_group), mined_negatives, targets.exhaustive)


def _targets(by_rank: Sequence[SparseTargets], rows: range, columns: range) -> Targets:
    """The targets of some rows against some columns; `by_rank` has those of these rows."""
    truth: Entries = []
    same_group: Entries = []
    mined_negatives: Entries | None = []
    exhaustive: list[bool] = []
    for targets in by_rank:
        truth += targets.truth
        same_group += targets.same_group
        exhaustive += targets.exhaustive
        # Without mining on one rank there is none in the batch of all.
        if mined_negatives is None or targets.mined_negatives is None:
            mined_negatives = None
        else:
            mined_negatives += targets.mined_negatives
    within = _dense(same_group, rows, columns)
    # Within a group truth is annotated; elsewhere only for an image whose corpus is exhaustive.
    known = within | torch.tensor(exhaustive, dtype=torch.bool)[:, None]
    mined = None
    if mined_negatives is not None:
        mined = _dense(mined_negatives, rows, columns)
    return Targets(_dense(truth, rows, columns), known, within, mined)


def _dense(entries: Entries, rows: range, columns: range) -> Bool[Tensor, "rows columns"]:
    """Returns a matrix of these rows and columns that is True at the entries within."""
    dense = torch.zeros(len(rows), len(columns), dtype=torch.bool)
    positions = torch.tensor(entries, dtype=torch.int64).view(-1, 2)
    row, column = positions.unbind(dim=1)
    # The rows of a rank's own targets are all wanted; columns may be another rank's.
    inside = (column >= columns.start) & (column < columns.stop)
    row = row[inside] - rows.start
    column = column[inside] - columns.start
    dense[row, column] = True
    return dense
