from dataclasses import replace

from tests.scored import random_targets, random_values, scored, share_of
from vlmtune.training.score_shards import local_scores

ROWS, COLUMNS = slice(1, 3), slice(4, 9)


def test_the_own_block_is_where_rows_and_columns_cross():
    scores, targets = scored(random_values(0)), random_targets(0)
    share = share_of(scores, targets, ROWS, COLUMNS)
    block, true = local_scores(share)
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
    mined = targets.same_group & ~targets.truth
    rows = replace(share.row_targets, mined_negatives=mined[ROWS])
    _, true = local_scores(replace(share, row_targets=rows))
    assert true.mined_negatives.equal(mined[ROWS, COLUMNS])
