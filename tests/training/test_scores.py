"""Scores in training: what objectives need of them, and the block of a rank."""

from dataclasses import replace

import pytest
import torch

from tests.scored import random_targets, random_values, scored, share_of
from tests.toy import Together, Toy, Tune, batch, groups, own_scores, share
from vlmtune.pairs.all_pairs import AllPairs
from vlmtune.training.score_shards import local_scores
from vlmtune.training.scores import TrainingScores

BATCH = batch([group for part in groups((2, 2)) for group in part])
ALL = frozenset({"embedded", "tokens", "reference"})


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_dual_adapter_gives_all_that_objectives_need(frozen, chunk):
    backbone = Toy()
    scores = TrainingScores(backbone, Tune(frozen, "tokens"), AllPairs(), ALL, chunk)
    got = share(scores, BATCH)
    made, inner = scores.adapter, got.rows.embedded
    cosines = inner.image @ inner.text.T
    torch.testing.assert_close(got.rows.values, inner.scale * cosines + made.bias)
    torch.testing.assert_close(inner.scale, made.log_scale.exp())
    torch.testing.assert_close(got.rows.reference, own_scores(Toy(), BATCH))
    assert not got.rows.reference.requires_grad
    with torch.no_grad():
        features = [scores.features.encode_batch(side, BATCH) for side in ("image", "text")]
    want = made.embed_patches(features[0]), made.embed_words(features[1])
    for ours, theirs in zip((inner.image_tokens, inner.text_tokens), want, strict=True):
        torch.testing.assert_close(ours.values, theirs.values)
        assert ours.mask.equal(theirs.mask)


def test_what_no_objective_needs_is_not_computed():
    backbone = Toy()
    got = share(TrainingScores(backbone, Tune(), AllPairs()), BATCH)
    assert (got.rows.reference, got.rows.embedded.image_tokens) == (None, None)
    assert got.rows.phrases is None
    assert backbone.texts == [list(BATCH.texts)]
    assert len(backbone.images) == 1


def test_the_reference_stays_where_training_changes_the_backbone():
    backbone = Toy()
    scores = TrainingScores(backbone, Tune(), AllPairs(), {"reference"})
    assert not any(p.requires_grad for p in scores.original.parameters())
    before = share(scores, BATCH).rows
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1)
    after = share(scores, BATCH).rows
    assert not torch.allclose(after.values, before.values)
    assert after.reference.equal(before.reference)


def test_a_frozen_backbone_is_its_own_reference_and_runs_once_and_a_joint_adapter_has_one_too():
    backbone = Toy()
    scores = TrainingScores(backbone, Tune(frozen=True), AllPairs(), {"reference"})
    assert scores.original is None
    share(scores, BATCH)
    assert len(backbone.images) == len(backbone.texts) == 1
    got = share(TrainingScores(Toy(), Together(), AllPairs(), {"reference"}), BATCH)
    assert got.rows.embedded is None
    torch.testing.assert_close(got.rows.reference, own_scores(Toy(), BATCH))


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
