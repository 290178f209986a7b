from dataclasses import replace

import torch

from tests.scored import random_targets, random_values, scored, share_of
from tests.toy import batch, groups
from vlmtune.distributed.process_group import ProcessGroup
from vlmtune.training.score_shards import joint_score_shard, local_scores
from vlmtune.training.shard_layout import ShardLayout, shard_layout
from vlmtune.types import Scores

ROWS, COLUMNS = slice(1, 3), slice(4, 9)


class Second(ProcessGroup):
    """The second of three ranks, which asks the others nothing."""

    rank, size = 1, 3


def test_the_own_block_is_where_rows_and_columns_cross():
    scores, targets = scored(random_values(0)), random_targets(0)
    block, true = local_scores(share_of(scores, targets, ROWS, COLUMNS))
    assert block.values.equal(scores.values[ROWS, COLUMNS])
    assert block.computed.shape == block.values.shape
    assert block.reference.equal(scores.reference[ROWS, COLUMNS])
    assert block.embedded.image.equal(scores.embedded.image[ROWS])
    assert block.embedded.text.equal(scores.embedded.text[COLUMNS])
    assert block.embedded.text_tokens.values.equal(scores.embedded.text_tokens.values[COLUMNS])
    assert len(block.embedded.image_tokens) == 2
    assert true.truth.equal(targets.truth[ROWS, COLUMNS])
    assert true.same_group.equal(targets.same_group[ROWS, COLUMNS])
    assert true.mined_negatives is None


def test_the_own_block_knows_what_was_mined():
    targets = random_targets(0)
    share = share_of(scored(random_values(0)), targets, ROWS, COLUMNS)
    mined = targets.same_group & ~targets.truth
    rows = replace(share.row_targets, mined_negatives=mined[ROWS])
    _, true = local_scores(replace(share, row_targets=rows))
    assert true.mined_negatives.equal(mined[ROWS, COLUMNS])


def test_pairs_of_other_ranks_were_not_computed():
    values, targets = random_values(0), random_targets(0)
    whole = share_of(scored(values), targets, ROWS, COLUMNS)
    own = torch.arange(5)
    where = ShardLayout(own, 1, 4, whole.row_targets, whole.column_targets, own + 4)
    computed = values[ROWS, COLUMNS] > 0
    mine = Scores(values[ROWS, COLUMNS] * computed, computed)
    share = joint_score_shard(mine, where, Second())
    assert share.rows.values.shape == share.rows.computed.shape == (2, 9)
    assert share.columns.values.shape == share.columns.computed.shape == (5, 5)
    assert share.rows.computed.sum() == share.columns.computed.sum() == computed.sum()
    assert share.rows.values[:, COLUMNS].equal(mine.values)
    assert share.columns.values[ROWS].equal(mine.values)
    assert (share.row_start, share.column_start) == (1, 4)
    block, _ = local_scores(share)
    assert block.values.equal(mine.values)
    assert block.computed.equal(computed)


def test_one_process_has_everything_once():
    made = batch(groups((2,))[0])
    where = shard_layout(made, ProcessGroup(), merged=False)
    scores = Scores.full(torch.randn(made.targets.truth.shape))
    share = joint_score_shard(scores, where, ProcessGroup())
    assert share.rows is share.columns is scores
    assert share.row_targets is share.column_targets is made.targets
